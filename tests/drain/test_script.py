"""The printed script: the same under every shell and with every client, within its limits, and quiet about the token."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epp.cli.drain_page import page_plan, server_page
from epp.drain.plan import DrainPlan
from epp.drain.script import render
from epp.drain.shutdown import ENGINES
from tests.drain.script_runs import ALPINE, SHELLS, run_script, script_process, under
from tests.fakes.metrics_server import Answer, MetricsServer
from tests.fakes.picker_admin import PickerAdmin, picker_admin
from tests.flows.epp_process import wait_until
from tests.tools import require_tool

pytestmark = pytest.mark.flow

ENDPOINT = "10.0.0.1:8000"
CLIENTS = ("curl", "wget", "busybox-wget", "python3", "bash")
IDLE_PAGE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
BUSY_PAGE = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 0\n"
every_shell = pytest.mark.parametrize("shell", SHELLS)
every_client = pytest.mark.parametrize("client", CLIENTS)


def script(
    engine: str | None = "vllm", url: str | None = None, *, pickers: tuple[str, ...] = (), endpoints: tuple[str, ...] = (ENDPOINT,),
    log_file: Path | None = None, token_file: Path | None = None, max_wait_s: float = 60.0, min_wait_s: float = 0.2, call_s: float = 20.0,
) -> str:  # fmt: skip
    page = server_page(engine, url)
    plan = DrainPlan(
        engine=engine or "a model server", url=str(page.url), page=page_plan(page), picker_urls=pickers, endpoints=endpoints,
        log_file=str(log_file) if log_file else None, token_file=str(token_file) if token_file else None, min_wait_s=min_wait_s,
        max_wait_s=max_wait_s, interval_s=0.1, idle_samples=2, call_s=call_s,
    )  # fmt: skip
    return render(plan, ("--engine", engine or ""))


@pytest.fixture
async def admin() -> AsyncIterator[PickerAdmin]:
    async with picker_admin() as admin:
        yield admin


async def wait(folder: Path, text: str, client: str, shell: str = "dash") -> str:
    """What the script writes into `folder/log`; it must end with 0 and print nothing."""
    assert await run_script(text, folder, shell, image(client)) == (0, "", "")
    return (folder / "log").read_text()


def image(client: str) -> tuple[str, ...]:
    """The programs of an image that has this client."""
    return ALPINE if client == "busybox-wget" else (client, "awk")


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    shellcheck = require_tool("shellcheck")
    for engine in ENGINES:
        (tmp_path / f"{engine}.sh").write_text(script(engine, pickers=("http://epp:9090",)))

    checked = subprocess.run([shellcheck, "--shell=sh", *tmp_path.iterdir()], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout) == (0, "")


@every_shell
def test_a_shell_reads_the_whole_script(shell: str, tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text(script())

    assert subprocess.run([*under(shell), "-n", tmp_path / "s.sh"], capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize("facts", ENGINES.values(), ids=ENGINES.keys())
def test_the_image_of_every_engine_can_ask_and_read(facts: object) -> None:
    tools = set(getattr(facts, "tools", ()))

    assert tools & {"curl", "wget", "python3", "bash"}
    assert tools & {"awk", "python3"}


@every_shell
@every_client
async def test_it_waits_for_page_and_picker(shell: str, client: str, admin: PickerAdmin, tmp_path: Path) -> None:
    admin.in_flight = 3
    async with MetricsServer(BUSY_PAGE) as server:
        text = script("vllm", f"http://{server.address}", pickers=(admin.url,), log_file=tmp_path / "log")
        async with script_process(text, tmp_path, shell, image(client)) as process:
            log = tmp_path / "log"
            await wait_until(lambda: log.exists() and "the engine's page: 2 requests" in log.read_text(), "the page to be told")
            server.answer = Answer(body=IDLE_PAGE)
            await wait_until(lambda: "the engine's page: no requests" in log.read_text(), "the idle page to be told")
            assert process.returncode != 0, "the picker still counts 3 requests"
            admin.in_flight = 0
            printed = await process.communicate()

    assert process.returncode == 0
    assert printed == (b"", b"")
    assert f"{admin.url} about {ENDPOINT}: 3 requests" in log.read_text()
    assert log.read_text().endswith(": idle\n")
    assert admin.calls[0] == f"POST /api/v1/endpoints/{ENDPOINT}/drain?keep=600s"


@every_client
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Answer(status=404), "the page answers 404"),
        (Answer(status=503), "the page answers 503"),
        (Answer(body=b"<html></html>"), "the page does not say how many requests run"),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + IDLE_PAGE, close=True), "there is no whole page"),
        (Answer(body=IDLE_PAGE + b"x" * (9 << 20)), "there is no whole page"),
        (Answer(raw=b"nonsense\r\n\r\n", close=True), "there is no whole page"),
    ],
    ids=["404", "503", "html", "cut", "9 MB", "nonsense"],
)
async def test_what_is_no_page_tells_nothing(client: str, answer: Answer, sentence: str, tmp_path: Path) -> None:
    async with MetricsServer() as server:
        server.answer = answer
        log = await wait(tmp_path, script("vllm", f"http://{server.address}", log_file=tmp_path / "log"), client)

    assert sentence in log
    assert "only the minimum was waited" in log


@every_client
async def test_a_redirect_in_a_circle_holds_nothing_up(client: str, tmp_path: Path) -> None:
    async with MetricsServer() as server:
        server.answer = Answer(status=307, headers={"location": "/metrics", "content-length": "0"})
        log = await wait(tmp_path, script("vllm", f"http://{server.address}", log_file=tmp_path / "log"), client)

    assert "only the minimum was waited" in log


@every_shell
@every_client
@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(body=IDLE_PAGE * 1000, dribble_s=0.01)], ids=["hangs", "drips"])
async def test_a_server_that_does_not_answer_in_time_is_busy_until_the_maximum(
    shell: str, client: str, answer: Answer, tmp_path: Path
) -> None:
    async with MetricsServer() as server:
        server.answer = answer
        text = script("vllm", f"http://{server.address}", log_file=tmp_path / "log", max_wait_s=1.0, call_s=0.3)
        log = await wait(tmp_path, text, client, shell)

    assert "it does not answer in time, so it is probably busy" in log
    assert "gives up after 1." in log


@every_client
async def test_a_server_that_ends_is_gone(client: str, tmp_path: Path) -> None:
    async with MetricsServer(BUSY_PAGE) as server:
        text = script("vllm", f"http://{server.address}", log_file=tmp_path / "log")
        async with script_process(text, tmp_path, "dash", image(client)) as process:
            log = tmp_path / "log"
            await wait_until(lambda: log.exists() and "2 requests" in log.read_text(), "the page to be told")
            await server.stop()
            await process.communicate()
        await server.start()

    assert log.read_text().endswith(": nothing listens at the model server's port\n")


@every_client
async def test_a_picker_that_does_not_know_the_endpoint_counts_nothing(client: str, admin: PickerAdmin, tmp_path: Path) -> None:
    admin.knows = False

    log = await wait(tmp_path, script(None, pickers=(admin.url,), log_file=tmp_path / "log", min_wait_s=1.5), client)

    assert "it does not know this endpoint" in log
    assert log.endswith(": idle\n")


async def test_a_wget_that_takes_202_for_an_error_still_shows_that_the_picker_counts_something(
    admin: PickerAdmin, tmp_path: Path
) -> None:
    """As those of old BusyBoxes do."""
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "wget"
    busybox = require_tool("busybox")
    old.write_text(
        f"#!{require_tool('dash')}\n"
        f'case $({busybox} wget "$@" 2>&1 >/dev/null) in\n'
        "  *' 202 '*) echo 'wget: server returned error: HTTP/1.1 202 Accepted' >&2; exit 1 ;;\n"
        "esac\n"
        f'exec {busybox} wget "$@"\n'
    )
    old.chmod(0o755)
    admin.in_flight = 3
    text = script(None, pickers=(admin.url,), log_file=tmp_path / "log")
    async with script_process(text, tmp_path, "busybox", [each for each in ALPINE if "wget" not in each]) as process:
        log = tmp_path / "log"
        await wait_until(lambda: log.exists() and "1 requests" in log.read_text(), "the picker's count to be told")
        admin.in_flight = 0
        await process.communicate()

    assert log.read_text().endswith(": idle\n")


async def test_a_picker_is_believed_when_it_has_said_twice_that_it_does_not_know_the_endpoint(
    admin: PickerAdmin, tmp_path: Path
) -> None:
    admin.knows = False

    log = await wait(tmp_path, script(None, pickers=(admin.url,), log_file=tmp_path / "log", min_wait_s=0.0), "curl")

    assert "only the minimum was waited" in log
    assert sum(call.startswith("POST") for call in admin.calls) == 1


async def test_a_picker_that_does_not_answer_keeps_no_other_from_being_told(admin: PickerAdmin, tmp_path: Path) -> None:
    admin.in_flight = 1
    async with MetricsServer() as silent:
        silent.answer = Answer(hang=True)
        pickers = (f"http://{silent.address}", admin.url)
        text = script(None, pickers=pickers, log_file=tmp_path / "log")  # for 20 s it waits for the silent one
        async with script_process(text, tmp_path, "dash", image("curl")):
            await wait_until(lambda: len(admin.calls) == 2, "the other picker to be told and asked", timeout_s=15.0)


@every_client
async def test_the_token_reaches_the_picker_and_nobody_else(client: str, admin: PickerAdmin, tmp_path: Path) -> None:
    admin.token = "t0ken-of-the-test"
    admin.in_flight = 1
    (tmp_path / "token").write_text(admin.token + "\n")
    seen: set[str] = set()
    async with MetricsServer(IDLE_PAGE) as server:
        text = script(
            "vllm", f"http://{server.address}", pickers=(admin.url,), log_file=tmp_path / "log", token_file=tmp_path / "token"
        )
        async with script_process(text, tmp_path, "dash", image(client)) as process:
            log = tmp_path / "log"
            await wait_until(lambda: log.exists() and "1 requests" in log.read_text(), "the picker's count to be told")
            seen = await _arguments_of(process.pid)
            admin.in_flight = 0
            await process.communicate()

        assert not any("authorization" in request.headers for request in server.requests)
    assert log.read_text().endswith(": idle\n")
    assert admin.token not in log.read_text()
    if "wget" not in client:  # it has no other way
        assert not any(admin.token in words for words in seen)


async def _arguments_of(group: int) -> set[str]:
    """The command lines of a process group, looked at often enough to see its short-lived children."""
    seen: set[str] = set()
    for _ in range(200):
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if os.getsid(int(entry.name)) == group:
                        seen.add((entry / "cmdline").read_text(errors="replace"))
                except OSError:
                    continue
        await asyncio.sleep(0.005)
    return seen


async def test_wget_is_not_chosen_for_a_token_when_there_is_another(admin: PickerAdmin, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    with_token = script(None, pickers=(admin.url,), log_file=tmp_path / "log", token_file=tmp_path / "token")
    without = script(None, pickers=(admin.url,), log_file=tmp_path / "other")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    await run_script(with_token, tmp_path / "one", "dash", ("wget", "python3"))
    await run_script(without, tmp_path / "two", "dash", ("wget", "python3"))

    assert "(asks by python3)" in (tmp_path / "log").read_text()
    assert "(asks by wget)" in (tmp_path / "other").read_text()


@every_shell
async def test_an_image_without_awk_reads_the_page_with_python(shell: str, tmp_path: Path) -> None:
    async with MetricsServer(BUSY_PAGE) as server:
        text = script("vllm", f"http://{server.address}", log_file=tmp_path / "log", max_wait_s=2.0)
        assert (await run_script(text, tmp_path, shell, ("python3",)))[0] == 0

    assert "the engine's page: 2 requests" in (tmp_path / "log").read_text()


@every_shell
async def test_an_image_with_nothing_waits_the_minimum_and_says_why(shell: str, tmp_path: Path) -> None:
    began_s = time.monotonic()

    assert (await run_script(script(min_wait_s=0.5, log_file=tmp_path / "log"), tmp_path, shell, ()))[0] == 0

    log = (tmp_path / "log").read_text()
    assert time.monotonic() - began_s >= 0.5
    assert "expected curl, wget, python3 or bash here, found none" in log
    assert "only the minimum was waited" in log


@every_shell
async def test_sigterm_is_said_and_ends_it(shell: str, tmp_path: Path) -> None:
    async with MetricsServer(BUSY_PAGE) as server:
        text = script("vllm", f"http://{server.address}", log_file=tmp_path / "log")
        async with script_process(text, tmp_path, shell, image("curl")) as process:
            log = tmp_path / "log"
            await wait_until(lambda: log.exists() and "2 requests" in log.read_text(), "the page to be told")
            process.send_signal(signal.SIGTERM)
            await process.communicate()

    assert process.returncode == 0
    assert log.read_text().endswith("ends early: told to by a signal\n")


@every_shell
async def test_a_log_that_nobody_empties_does_not_hold_it(shell: str, tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        pass

    assert (await run_script(script(log_file=fifo), tmp_path, shell, image("curl")))[0] == 0

    os.close(reader)
    os.close(writer)


@every_shell
async def test_the_endpoint_is_the_pods_address(shell: str, admin: PickerAdmin, tmp_path: Path) -> None:
    text = script(None, "http://127.0.0.1:8123", pickers=(admin.url,), endpoints=(), log_file=tmp_path / "log")

    await run_script(text, tmp_path, shell, image("curl"), {"POD_IP": "fd00::7"})

    assert admin.calls[0].startswith("POST /api/v1/endpoints/[fd00::7]:8123/drain")


async def test_slots_of_llama_cpp_are_counted_where_it_has_no_metrics(tmp_path: Path) -> None:
    async with MetricsServer() as server:
        server.answers["/metrics"] = Answer(status=501)
        server.answers["/slots"] = Answer(body=b'[{"id": 0, "is_processing": true}, {"id": 1, "is_processing":false}]')
        text = script("llamacpp", f"http://{server.address}", log_file=tmp_path / "log", max_wait_s=1.0)
        log = await wait(tmp_path, text, "curl")

    assert "the engine's page: 1 requests" in log
