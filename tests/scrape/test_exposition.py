"""The exposition reader: the grammar, what it leaves out, what it costs, and an independent parser as second opinion."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from epp.scrape import exposition
from epp.scrape.exposition import (
    LOOKED_AT_BYTES,
    MOST_LABEL_BYTES,
    MOST_LINES,
    WHOLE_EVERY_READS,
    PageLayout,
    Sample,
    SampleFinder,
    looks_like_exposition,
)
from tests.scrape.pages import FOLDER, sample_page


def find(name: str, page: bytes) -> list[Sample]:
    return list(SampleFinder([name]).find(page).families.get(name, []))


def value(line: bytes) -> float:
    (sample,) = find("g", line)
    return sample.value


# ── names ──


def test_a_name_is_matched_exactly() -> None:
    page = b'\nwaiting_by_reason{r="a"} 7\nwaiting_total 8\nnot_waiting 9\nwaiting:x 10\nwaiting{engine="0"} 1\n'

    assert find("waiting", page) == [Sample({"engine": "0"}, 1.0)]


@pytest.mark.parametrize(
    "page", [b"g 1", b"g 1\n", b"\n\n\ng 1\n\n", b"g 1\r\n", b"# HELP g x\r\n# TYPE g gauge\r\ng 1\r\n# EOF\r\n", b"  \tg 1"]
)
def test_a_sample_is_found_wherever_it_stands(page: bytes) -> None:
    assert find("g", page) == [Sample({}, 1.0)]


def test_a_name_on_a_comment_or_in_a_label_is_no_sample() -> None:
    assert find("g", b'# HELP g g 5\n# g 4\nh{l="\\ng 3"} 1\n') == []


def test_samples_of_one_family_need_not_stand_together() -> None:
    assert [s.value for s in find("g", b'g{e="0"} 1\nh 5\ng{e="1"} 2\n')] == [1.0, 2.0]


def test_several_names_are_found_in_one_pass() -> None:
    found = SampleFinder(["a", "b", "absent"]).find(b"b 2\na 1\nc 3\n")

    assert found.families == {"a": [Sample({}, 1.0)], "b": [Sample({}, 2.0)]}


def test_a_finder_of_nothing_finds_nothing() -> None:
    assert SampleFinder([]).find(b"g 1\n\n 2\n").families == {}


# ── values ──


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"23", 23.0),
        (b"23.0", 23.0),
        (b"0.41833905139096766", 0.41833905139096766),
        (b"1.78746359975e+09", 1787463599.75),
        (b"9.21477e+06", 9214770.0),
        (b"2E-3", 0.002),
        (b"-0.3875", -0.3875),
        (b"+7", 7.0),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b"+Inf", math.inf),
        (b"-Inf", -math.inf),
        (b"Inf", math.inf),
    ],
)
def test_every_way_to_write_a_value_is_read(text: bytes, expected: float) -> None:
    assert value(b"g " + text + b"\n") == expected
    assert value(b'g{a="b"}\t' + text + b" \n") == expected


@pytest.mark.parametrize("text", [b"NaN", b"nan", b"+NaN"])
def test_not_a_number_is_read_as_such(text: bytes) -> None:
    assert math.isnan(value(b"g " + text))


@pytest.mark.parametrize(
    "line",
    [
        b"g 3 1787460123000",
        b"g 3 -1",
        b'g 3 1787460123.217 # {trace_id="ab"} 0.5 1787460123.0',
        b'g{a="b"} 3 # {trace_id="a b"} 1',
        b"g\t3\t1787460123000",
    ],
)
def test_timestamps_and_exemplars_are_passed_over(line: bytes) -> None:
    assert value(line) == 3.0


@pytest.mark.parametrize(
    "line",
    [
        b"g ",
        b"g {",
        b'g{a="b',
        b'g{a="b"',
        b'g{a="b"}',
        b'g{a="b"} ',
        b'g{a="b" c="d"} 1',
        b'g{a="b",,c="d"} 1',
        b'g{,a="b"} 1',
        b"g{a=b} 1",
        b'g{"a"="b"} 1',
        b'g{1a="b"} 1',
        b"g{a} 1",
        b'g{a="b"}} 1',
        b"g one",
        b"g 1_000",
        b"g 1x",
        b"g 0x10",
        b"g 1 2 3",
        b"g 1 now",
        b"g 1#",
        b"g -",
        b"g 1e",
        b"g \xff\xfe",
    ],
)
def test_a_line_that_is_no_sample_costs_only_itself(line: bytes) -> None:
    found = SampleFinder(["g", "h"]).find(b"g 1\n" + line + b"\nh 2\n")

    assert found.families == {"g": [Sample({}, 1.0)], "h": [Sample({}, 2.0)]}
    assert found.bad_lines == 1


# ── labels ──


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"{}", {}),
        (b"{ }", {}),
        (b'{a="b"}', {"a": "b"}),
        (b'{a="b",}', {"a": "b"}),
        (b'{ a = "b" ,\tc="d" , }', {"a": "b", "c": "d"}),
        (b'{z="1",a="2"}', {"z": "1", "a": "2"}),
        (b'{a=""}', {"a": ""}),
        (
            b'{running_lora_adapters="sql-lora,tweet-lora",max_lora="4"}',
            {"running_lora_adapters": "sql-lora,tweet-lora", "max_lora": "4"},
        ),
        (b'{a="x}y",b="{\'k\': [1, 2]}"}', {"a": "x}y", "b": "{'k': [1, 2]}"}),
        (b'{a="say \\"hi\\"",b="C:\\\\dir",c="two\\nlines"}', {"a": 'say "hi"', "b": "C:\\dir", "c": "two\nlines"}),
        (b'{a="\\\\n"}', {"a": "\\n"}),
        (b'{a="\\d+"}', {"a": "\\d+"}),
        (b'{a="a=\\"b\\","}', {"a": 'a="b",'}),
        ('{a="größe 模型"}'.encode(), {"a": "größe 模型"}),
        (b'{a="\xff"}', {"a": "\ufffd"}),
        (b'{a="# not a comment"}', {"a": "# not a comment"}),
    ],
)
def test_labels_are_really_parsed(block: bytes, expected: dict[str, str]) -> None:
    finder = SampleFinder(["g"])
    for _ in range(2):  # read, then remembered
        assert finder.find(b"g" + block + b" 1\n").families == {"g": [Sample(expected, 1.0)]}
    assert find("g", b"g " + block + b"1\n") == [Sample(expected, 1.0)]


def test_a_remembered_block_is_not_taken_for_a_longer_one_that_begins_alike() -> None:
    finder = SampleFinder(["g"])
    finder.find(b'g{a="x"} 1\n')

    found = finder.find(b'g{a="x}"} 2\ng{a="x",b="y"} 3\ng{a="x"}x 4\n')

    assert found.families == {"g": [Sample({"a": "x}"}, 2.0), Sample({"a": "x", "b": "y"}, 3.0)]}
    assert found.bad_lines == 1


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REMEMBERED_LABELS", 10)
    finder = SampleFinder(["g"])
    pages = [b'g{a="%d"} %d\n' % (i, i) for i in range(100)]

    found = [finder.find(page).families["g"][0] for page in pages]

    assert found == [Sample({"a": str(i)}, float(i)) for i in range(100)]
    assert len(finder._labels) <= 10


# ── any bytes ──


@pytest.mark.parametrize("cut_at", range(0, 12421, 97))
def test_a_page_cut_anywhere_gives_what_is_whole(cut_at: int) -> None:
    finder = SampleFinder(["nv_trt_llm_request_metrics"])
    page = sample_page("triton-trtllm-busy.txt")[:cut_at]

    found = finder.find(page)

    lines = [line for line in page.split(b"\n") if line.startswith(b"nv_trt_llm_request_metrics{")]
    assert len(found.families.get("nv_trt_llm_request_metrics", [])) + found.bad_lines == len(lines)
    assert found.bad_lines <= 1


@given(
    st.binary()
    | st.lists(st.sampled_from([b"g", b"{", b"}", b'"', b"\\", b"a=", b",", b" ", b"1", b"\n", b"#", b"\r"])).map(b"".join)
)
def test_no_bytes_raise(page: bytes) -> None:
    found = SampleFinder(["g", "a"]).find(page)

    assert found.bad_lines >= 0
    looks_like_exposition(page)


@pytest.mark.parametrize(
    "piece",
    [b'g{a="', b'g{a="\\', b"g{", b'g{a="b",', b"g 1 ", b"g " + b"9" * 100, b"\n ", b'g{a="b"}\n', b"g" * 50 + b"{"],
)
def test_a_hostile_page_takes_no_more_than_linear_time(piece: bytes) -> None:
    finder = SampleFinder(["g"])
    page = b"g" + piece * (1_000_000 // len(piece))
    began = time.process_time()

    finder.find(page)
    looks_like_exposition(page)

    assert time.process_time() - began < 3.0


@pytest.mark.parametrize(
    "page", [b"g 1", b"# EOF\n", b"# TYPE g gauge\n", b"\n\n# HELP x\n", b'g{a="b"} NaN\n', b"a:b_c 1e9\n"]
)
def test_a_metrics_page_looks_like_one(page: bytes) -> None:
    assert looks_like_exposition(page)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<!DOCTYPE html>\n<html lang=en>",
        b'{"detail": "Not Found"}',
        b"[]",
        b"Ollama is running",
        b"\x00\x01\x02\xff",
        b"404 page not found\n",
    ],
)
def test_other_pages_do_not_look_like_one(page: bytes) -> None:
    assert not looks_like_exposition(page)


# ── second opinion ──

NAMES = ("g", "vllm:num_requests_waiting", "a_total")
blanks = st.text(" \t", max_size=2)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True)
label_values = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"]) | st.sampled_from(['"', "\\", "\n", "{", "}", ",", "=", " ", "#"]),
    max_size=8,
)
numbers = (
    st.floats(allow_nan=True, allow_infinity=True).map(repr)
    | st.integers(-(10**20), 10**20).map(str)
    | st.sampled_from(["+Inf", "NaN", "1e5", "7."])
)


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=3))
    pairs = [f'{name}{draw(blanks)}={draw(blanks)}"{_escaped(text)}"{draw(blanks)}' for name, text in labels.items()]
    block = (
        ("{" + draw(blanks) + ("," + draw(blanks)).join(pairs) + draw(st.sampled_from(["", ","] if pairs else [""])) + "}")
        if draw(st.booleans())
        else ""
    )
    gap = draw(st.sampled_from([" ", "  ", "\t", " \t"]))
    timestamp = draw(st.sampled_from(["", "", " 1787460123000"]))
    return (
        draw(blanks) + draw(st.sampled_from(NAMES)) + (block if labels else "") + gap + draw(numbers) + timestamp + draw(blanks)
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


noise = st.sampled_from(
    [
        "",
        "# HELP g about g\n",
        "# TYPE g gauge\n",
        "# a comment",
        "other_metric 5",
        'g_bucket{le="+Inf"} 4',
        "gg 3",
        "vllm:num_requests_waiting_by_reason 9",
    ]
)


@pytest.mark.timeout(600)
@settings(max_examples=300)
@given(st.lists(sample_lines() | noise, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_client_librarys_parser_reads_the_same(lines: list[str], ending: str, end_of_file: bool) -> None:
    text = ending.join(lines) + (f"{ending}# EOF{ending}" if end_of_file else "")

    found = SampleFinder(NAMES).find(text.encode())

    expected: dict[str, list[tuple[dict[str, str], str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in NAMES:
                expected.setdefault(sample.name, []).append((sample.labels, repr(float(sample.value))))
    assert {n: [(dict(s.labels), repr(s.value)) for s in samples] for n, samples in found.families.items()} == expected
    assert found.bad_lines == 0


def test_the_client_librarys_openmetrics_parser_reads_the_same() -> None:
    text = (
        "# HELP vllm:prompt_tokens Tokens..\n# TYPE vllm:prompt_tokens counter\n"
        'vllm:prompt_tokens_total{model_name="m",engine="0"} 17 # {trace_id="ab c"} 1.0 1787460123.5\n'
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{model_name="m",engine="0"} 3\n'
        'vllm:num_requests_running{model_name="m",engine="1"} 4 1787460123.25\n# EOF\n'
    )
    names = ["vllm:prompt_tokens_total", "vllm:num_requests_running"]

    found = SampleFinder(names).find(text.encode()).families

    families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    oracle = [s for family in families for s in family.samples]
    assert [(s.labels, s.value) for name in names for s in found[name]] == [(s.labels, s.value) for s in oracle]


@pytest.mark.parametrize("file", sorted(f.name for f in FOLDER.glob("*.txt") if f.read_bytes()[:1] not in b"[{"))
def test_every_name_of_every_sample_page_is_read_as_the_client_library_reads_it(file: str) -> None:
    page = sample_page(file)
    expected: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    on_page = {line.partition(b"{")[0].partition(b" ")[0].decode() for line in page.split(b"\n") if line[:1] not in (b"", b"#")}

    found = SampleFinder(on_page).find(page)

    assert found.bad_lines == 0
    for name, samples in found.families.items():
        read = [(dict(s.labels), s.value) for s in samples]
        oracle = expected.get(name) or expected[f"{name}_total"]  # it adds _total to counters without
        assert repr(read) == repr(oracle)


# ── cost ──


def test_the_cost_of_a_page_hardly_grows_with_lines_that_nobody_wants() -> None:
    """Field report 35: parsing full pages costs cores; only wanted lines are touched."""
    finder = SampleFinder(["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"])
    page = sample_page("vllm-busy.txt")
    buckets = b"\n".join(line for line in page.split(b"\n") if b"_bucket" in line)

    everything = SampleFinder({line.partition(b"{")[0].decode() for line in page.split(b"\n") if line[:1] not in (b"", b"#")})
    cases = {"wanted": (finder, page), "everything": (everything, page), "more that nobody wants": (finder, page + buckets)}
    cost_s = dict.fromkeys(cases, math.inf)
    for _ in range(50):  # by turns, so that all meet the same machine
        for case, (reader, body) in cases.items():
            began_s = time.thread_time()
            reader.find(body)
            cost_s[case] = min(cost_s[case], time.thread_time() - began_s)

    assert cost_s["wanted"] < cost_s["everything"] / 5
    assert cost_s["more that nobody wants"] < cost_s["wanted"] * 3


# ── reading where the lines stood on the last page ──

FILLER = "".join(f'other_bucket{{le="{n}"}} {n}\n' for n in range(40))


def laid_out(**values: object) -> bytes:
    return (
        f'{FILLER}# TYPE a gauge\na{{rank="0"}} {values.get("a0", 1)}\na{{rank="1"}} {values.get("a1", 2)}\n'
        f"{values.get('beside', '')}{FILLER}b {values.get('b', 3)}\n{values.get('extra', '')}"
    ).encode()


@given(st.lists(st.tuples(*(3 * [st.floats(allow_nan=False) | st.integers()])), min_size=1, max_size=30))
def test_a_page_whose_values_changed_reads_the_same_with_and_without_memory(pages: list[tuple[float, float, float]]) -> None:
    finder, layout = SampleFinder(["a", "b"]), PageLayout()
    for a0, a1, b in pages:
        page = laid_out(a0=a0, a1=a1, b=b)
        assert finder.find(page, layout) == SampleFinder(["a", "b"]).find(page)


@pytest.mark.parametrize("beside", ['a{rank="2"} 7\n', "a 7\n", 'a{x="y"}\t7\n'])
def test_a_series_that_is_new_in_its_family_is_seen_at_once(beside: str) -> None:
    finder, layout = SampleFinder(["a", "b"]), PageLayout()
    finder.find(laid_out(), layout)
    assert len(finder.find(laid_out(beside=beside), layout).families["a"]) == 3


def test_a_series_that_went_away_is_not_remembered() -> None:
    finder, layout = SampleFinder(["a", "b"]), PageLayout()
    finder.find(laid_out(beside='a{rank="2"} 7\n'), layout)
    assert len(finder.find(laid_out(), layout).families["a"]) == 2
    assert finder.find(b"", layout).families == {}


def test_a_family_that_is_new_on_the_page_is_found_within_a_few_reads() -> None:
    finder, layout = SampleFinder(["a", "b", "c"]), PageLayout()
    finder.find(laid_out(), layout)
    found = ["c" in finder.find(laid_out(extra="c 5\n"), layout).families for _ in range(WHOLE_EVERY_READS + 1)]
    assert found[-1]


@given(st.binary(max_size=400))
def test_memory_of_any_page_and_any_page_after_it_raise_nothing(rest: bytes) -> None:
    finder, layout = SampleFinder(["a", "b"]), PageLayout()
    finder.find(laid_out(), layout)
    finder.find(laid_out()[:900] + rest, layout)
    finder.find(rest, layout)


# ── pages made to be slow ──


@pytest.mark.parametrize(
    "page",
    [
        b"g 1\n" * (MOST_LINES + 1),
        b"g x\n" * (MOST_LINES + 1),
        b"".join(b'g{a="%d%b"} 1\n' % (n, b"a" * 1000) for n in range(MOST_LABEL_BYTES // 1000)),
        b"g{" + b'a="b",' * (MOST_LABEL_BYTES // 6 + 1) + b"} 1\n",
        b'g{a="b",a="\n' * (MOST_LABEL_BYTES // 10),
    ],
    ids=["lines", "bad lines", "labels", "one block", "open blocks"],
)
def test_of_too_much_that_is_wanted_the_rest_is_not_read(page: bytes) -> None:
    layout = PageLayout()
    found = SampleFinder(["g"]).find(page, layout)

    assert not found.whole
    assert len(found.families.get("g", ())) + found.bad_lines <= MOST_LINES
    assert layout.heads == []


def test_a_page_with_as_much_as_may_be_is_read_whole() -> None:
    found = SampleFinder(["g"]).find(b"g 1\n" * MOST_LINES)

    assert found.whole
    assert len(found.families["g"]) == MOST_LINES


def test_labels_that_are_known_do_not_count_again() -> None:
    finder = SampleFinder(["g"])
    page = b"".join(b'g{a="%d%b"} 1\n' % (n, b"a" * 1000) for n in range(MOST_LABEL_BYTES // 2000))

    assert all(finder.find(page + page).whole for _ in range(2))


def test_what_kind_of_page_it_is_is_looked_for_in_its_beginning() -> None:
    assert not looks_like_exposition(b"\n" * LOOKED_AT_BYTES + b"g 1\n")
