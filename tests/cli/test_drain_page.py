"""What an engine's page says to `epp drain`, by the command and by both readers of the printed script."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from epp.cli.drain_page import EnginePage, ServerPage, page_plan, requests_on, server_page
from epp.drain.idle_watch import Gone, NoAnswer, Silent, Told
from epp.drain.plan import DrainPlan
from epp.drain.script import render
from epp.drain.standalone_page import requests_on as requests_by_python
from epp.errors import ConfigError
from epp.scrape.engines.page import PageFormat
from tests.fakes.metrics_server import Answer, MetricsServer
from tests.scrape.engines.test_pages import PAGES
from tests.scrape.pages import sample_page
from tests.sim.process import PATIENCE_S
from tests.tools import require_tool

EXPOSITIONS = [name for name in PAGES if name.endswith(".txt") and sample_page(name)[:1] not in (b"[", b"{")]
Numbers = tuple[float | None, float | None]


def variable(script: str, name: str) -> str:
    """A value of the script, as its shell sees it."""
    dash = require_tool("dash")
    values = script[script.index("ENGINE=") : script.index("NEW_LINE=")]
    return subprocess.run([dash, "-c", f'{values}\nprintf "%s" "${name}"'], capture_output=True, check=True).stdout.decode()


def awk_reader(awk: list[str], page: ServerPage, kind: str = "text") -> Callable[[bytes], Numbers]:
    program = variable(render(DrainPlan(engine="x", url="http://127.0.0.1:8000", page=page_plan(page)), ()), "AWK_PAGE")

    def read(body: bytes) -> Numbers:
        ran = subprocess.run(
            [*awk, "-v", f"form={kind}", program], input=body, capture_output=True, check=True, env={"LC_ALL": "C"}
        )
        assert ran.stderr == b""
        return numbers(ran.stdout)

    return read


def python_reader(page: ServerPage, kind: str = "text") -> Callable[[bytes], Numbers]:
    script = render(DrainPlan(engine="x", url="http://127.0.0.1:8000", page=page_plan(page)), ())
    program, terms = variable(script, "PYTHON_PAGE"), variable(script, "TERMS")

    def read(body: bytes) -> Numbers:
        ran = subprocess.run([sys.executable, "-c", program, kind, terms], input=body, capture_output=True, check=True)
        assert ran.stderr == b""
        return numbers(ran.stdout)

    return read


def numbers(printed: bytes) -> Numbers:
    waiting, running, form = printed.decode().split()
    assert form in {"page", "blank"}
    return (None if waiting == "-" else float(waiting), None if running == "-" else float(running))


AWKS = {"mawk": ["mawk"], "busybox": ["busybox", "awk"]}


def awk_words(name: str) -> list[str]:
    program, *rest = AWKS[name]
    return [str(require_tool(program)), *rest]


@pytest.mark.parametrize("file", EXPOSITIONS)
def test_the_script_reads_every_sample_page_as_the_catalog_does(file: str) -> None:
    """Ranks that repeat each other, priorities, several processes, selectors and two queues included."""
    expected = PAGES[file]
    page = server_page(expected.engine)

    for read in (awk_reader(awk_words("mawk"), page), awk_reader(awk_words("busybox"), page), python_reader(page)):
        assert read(sample_page(file)) == (expected.waiting, expected.running)


@pytest.mark.parametrize("file", [name for name in PAGES if "slots" in name])
def test_the_script_counts_slots_as_the_catalog_does(file: str) -> None:
    page = server_page("llamacpp")
    kind = "count:is_processing"

    for read in (
        awk_reader(awk_words("mawk"), page, kind),
        awk_reader(awk_words("busybox"), page, kind),
        python_reader(page, kind),
    ):
        assert read(sample_page(file)) == (None, PAGES[file].running)
        assert read(b'{"error": "no slots"}') == (None, None)


@pytest.mark.parametrize("file", [name for name in PAGES if PAGES[name].engine != "ollama"])
def test_the_command_tells_the_requests_of_every_sample_page(file: str) -> None:
    body, expected = sample_page(file), PAGES[file]
    page = server_page(expected.engine)
    assert page.engine is not None
    form = PageFormat.JSON if body[:1] in (b"[", b"{") else PageFormat.EXPOSITION
    source = next(source for source in page.engine.sources if source.format is form)

    said = requests_on(page, source, body)

    if expected.running is None:
        assert isinstance(said, Silent)
    else:
        assert said == Told((expected.waiting or 0) + expected.running)


TRICKY = rb"""
# HELP q{s="a"} 9
q{s="a",pid="1"} 3
q{s="a",pid="2"} 1
  q{ s = "a" , m="x,y}\"{" , } 2 1700000000
q{s="b"} 64
q_total{s="a"} 100
q{s="a",m="nan"} NaN
q{s="a",m="inf"} +Inf
q{s="a",m="less"} -1
q{s="a",m="more"} 1e30
q{s="a",m="cut
q{s="a",m="exponent"} 1.2e+01
q{m="5",s="a"} 1
q{s="a",m="5"} 4
r 2.0 # {trace="x"} 1
"""


def test_selectors_labels_and_odd_lines_are_read_alike() -> None:
    page = server_page(None, waiting_metric='q{s="a"}', running_metric="r")
    assert page.engine is not None
    # 3 of the two pids, 2, 12, and the higher of the same labels in another order: 4
    expected = (21.0, 2.0)

    assert requests_on(page, page.engine.sources[0], TRICKY) == Told(23.0)
    for read in (awk_reader(awk_words("mawk"), page), awk_reader(awk_words("busybox"), page), python_reader(page)):
        assert read(TRICKY) == expected


@pytest.mark.parametrize(
    ("condition", "sum_of_q"), [('s!="a"', 4.0), ('s=~"a|c"', 3.0), ('s=~"b.*"', 4.0), ('s!~"[ab]"', None), ('t=""', 7.0), ('s=~"[ab]"', 7.0)]
)  # fmt: skip
def test_every_kind_of_condition_counts_in_the_script(condition: str, sum_of_q: float | None) -> None:
    page = server_page(None, running_metric=f"q{{{condition}}}")
    body = b'q{s="a"} 3\nq{s="b"} 4\n'
    assert page.engine is not None

    answer = requests_on(page, page.engine.sources[0], body)

    assert (answer.requests if isinstance(answer, Told) else None) == sum_of_q
    for read in (awk_reader(awk_words("mawk"), page), awk_reader(awk_words("busybox"), page), python_reader(page)):
        assert read(body)[1] == sum_of_q


_TEXT = st.text(st.sampled_from('ab"\\,}{= \n5é'), max_size=6)
_LABELS = st.dictionaries(st.sampled_from(["s", "pid", "priority", "engine", "tp_rank"]), _TEXT, max_size=4)


@given(st.lists(st.tuples(_LABELS, st.integers(0, 50)), max_size=8))
def test_any_labels_are_read_alike(samples: list[tuple[dict[str, str], int]]) -> None:
    page = server_page(None, running_metric='q{s!="a"}')
    assert page.engine is not None
    lines = []
    for labels, number in samples:
        escaped = {name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()}
        lines.append("q{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + f"}} {number}")
    body = "\n".join(lines).encode() + b"\n"
    terms = json.loads(variable_of_terms(page))

    answer = requests_on(page, page.engine.sources[0], body)

    assert requests_by_python(body.decode(), terms)[1] == (answer.requests if isinstance(answer, Told) else None)


def variable_of_terms(page: ServerPage) -> str:
    script = render(DrainPlan(engine="x", url="http://127.0.0.1:8000", page=page_plan(page)), ())
    return next(line for line in script.splitlines() if line.startswith("TERMS="))[len("TERMS='") : -1]


def test_a_pattern_that_awk_reads_otherwise_is_refused() -> None:
    page = server_page(None, running_metric=r'q{s=~"\\d+"}')

    with pytest.raises(ConfigError, match="expected for the script a pattern"):
        render(DrainPlan(engine="x", url="http://127.0.0.1:8000", page=page_plan(page)), ())


def test_the_programs_of_the_script_have_no_byte_that_a_shell_would_change() -> None:
    for name in ("script.sh", "page.awk", "standalone_page.py", "standalone_call.py", "call.bash"):
        text = (files("epp.drain") / name).read_text("utf-8")
        assert "\r" not in text
        assert "\0" not in text


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"", Told(0.0)),  # TGI has an empty page until its first request
        (b"\n\n", Told(0.0)),
        (b"# HELP tgi_queue_size x\n", Silent("the page does not say how many requests run")),
        (b"tgi_queue_size 0\n", Silent("the page does not say how many requests run")),
        (b"tgi_queue_size 2\n", Told(2.0)),
    ],
)
def test_a_page_is_idle_only_when_it_says_so(body: bytes, answer: Told | Silent) -> None:
    page = server_page("tgi")

    assert requests_on(page, page.sources[0][1], body) == answer


def test_an_empty_page_of_trtllm_serve_tells_nothing() -> None:
    """Its gauges are absent until the first request has finished, so requests may run."""
    page = server_page("trtllm-serve")

    assert isinstance(requests_on(page, page.sources[0][1], b""), Silent)


@pytest.mark.parametrize(
    ("flags", "urls"),
    [
        ({"engine_name": "vllm"}, ["http://127.0.0.1:8000/metrics"]),
        ({"engine_name": "VLLM", "url": "http://10.0.0.1:9"}, ["http://10.0.0.1:9/metrics"]),
        ({"engine_name": "triton"}, ["http://127.0.0.1:8002/metrics"]),
        ({"engine_name": "triton", "metrics_url": "http://127.0.0.1:7"}, ["http://127.0.0.1:7/metrics"]),
        ({"engine_name": "vllm", "metrics_url": "http://127.0.0.1:7/m?x=1"}, ["http://127.0.0.1:7/m?x=1"]),
        ({"engine_name": "nim"}, ["http://127.0.0.1:8000/v1/metrics", "http://127.0.0.1:8000/metrics"]),
        (
            {"engine_name": "sglang"},
            ["http://127.0.0.1:30000/v1/loads?include=core&format=json", "http://127.0.0.1:30000/metrics"],
        ),
        ({"engine_name": "ollama"}, []),
        ({"engine_name": None}, []),
        ({"engine_name": None, "running_metric": "r"}, ["http://127.0.0.1:8000/metrics"]),
    ],
)
def test_flags_say_where_the_pages_are(flags: dict[str, str], urls: list[str]) -> None:
    assert [str(url) for url, _ in server_page(**flags).sources] == urls


def test_the_script_reads_sglang_where_it_is_renewed_at_once() -> None:
    assert [source.url for source in page_plan(server_page("sglang")).sources] == [
        "http://127.0.0.1:30000/v1/loads?include=core&format=prometheus",
        "http://127.0.0.1:30000/metrics",
    ]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"engine_name": "gpt"}, "--engine: expected one of vllm"),
        ({"engine_name": "vllm", "url": "127.0.0.1:8000"}, "--url: expected a URL"),
        ({"engine_name": "vllm", "metrics_url": "ftp://x"}, "--metrics-url: expected a URL"),
        ({"engine_name": "ollama", "metrics_url": "http://x"}, "--metrics-url: expected beside it an --engine"),
        ({"engine_name": "vllm", "running_metric": "sum(q)"}, "--running-metric: expected a selector"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match="^" + problem.replace("(", r"\(")):
        server_page(**flags)


async def sample(page: ServerPage, timeout_s: float = PATIENCE_S) -> object:
    async with EnginePage(page) as reader:
        return await reader.sample(timeout_s)


async def test_the_first_page_that_tells_something_is_read_and_kept() -> None:
    async with MetricsServer() as server:
        server.answer = Answer(status=404)
        server.answers["/metrics"] = Answer(body=b"num_requests_running 2\nnum_requests_waiting 1\n")
        async with EnginePage(server_page("nim", f"http://{server.address}")) as reader:
            assert await reader.sample(PATIENCE_S) == Told(3.0)
            assert await reader.sample(PATIENCE_S) == Told(3.0)

        assert server.paths == ["/v1/metrics", "/metrics", "/metrics"]


FAULTS = {
    "a status": Answer(status=500),
    "a page of another kind": Answer(body=b"<html>", headers={"content-type": "text/html"}),
    "a page that was cut": Answer(
        raw=b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nvllm:num_requests_running 0\n", close=True
    ),
    "a page of 12 MB": Answer(body=b"vllm:num_requests_running 0\n" + b"x" * (12 << 20)),
    "a redirect in a circle": Answer(status=307, headers={"location": "/metrics"}),
}


@pytest.mark.parametrize("answer", FAULTS.values(), ids=FAULTS.keys())
async def test_what_is_no_whole_page_tells_nothing(answer: Answer) -> None:
    async with MetricsServer() as server:
        server.answer = answer

        assert isinstance(await sample(server_page("vllm", f"http://{server.address}")), Silent)


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(body=b"x" * 10_000, dribble_s=0.01)], ids=["nothing", "drips"])
async def test_a_page_that_does_not_come_in_time_is_busy(answer: Answer) -> None:
    async with MetricsServer() as server:
        server.answer = answer

        assert isinstance(await sample(server_page("vllm", f"http://{server.address}"), timeout_s=0.3), NoAnswer)


async def test_a_server_that_refuses_connections_is_gone() -> None:
    async with MetricsServer() as server:
        url = f"http://{server.address}"

    assert isinstance(await sample(server_page("vllm", url)), Gone)
    assert isinstance(await sample(server_page("ollama", url)), Gone)


async def test_a_server_without_its_port_for_metrics_is_not_gone() -> None:
    async with MetricsServer() as server, MetricsServer() as other:
        await other.stop()
        page = server_page("triton", f"http://{server.address}", f"http://{other.address}")
        assert isinstance(await sample(page), Silent)
        await other.start()


async def test_where_no_engine_is_named_nobody_is_asked() -> None:
    assert await sample(server_page(None)) == Silent("no engine is named")
    assert URL("http://127.0.0.1:8000") == server_page(None).url
