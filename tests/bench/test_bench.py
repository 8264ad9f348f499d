"""The parts of the bench that need no other processes; figures are measured by hand (`make bench`), never asserted."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import envoys
from tests.bench.cases import LOAD_CASES, LoadCase, chat_body
from tests.bench.cutting_proxy import CuttingProxy
from tests.bench.exchange import messages_of
from tests.bench.load import LoadResult, parse_hey, parse_own, percentile
from tests.bench.machine import BenchError, cpu_s, description, on_core, rss_mib, thread_cpu_s
from tests.bench.parts import measure_parts
from tests.bench.pod_changes import DeletionRun, ListRun
from tests.bench.profiling import read_collapsed
from tests.bench.results import Results
from tests.bench.table import columns, figure_lines
from tests.bench.through_envoy import IdleRun, LoadRun
from tests.fakes.upstream import Upstream

HEY = """
Summary:
  Total:	2.0321 secs
  Requests/sec:	1968.4031

Latency distribution:
  50%% in 0.0078 secs
  99%% in 0.0213 secs

Status code distribution:
  [200]	3990 responses
  [503]	8 responses

Error distribution:
  [2]	Post "http://127.0.0.1:18080/v1/chat/completions": EOF
"""


def test_the_summary_of_hey_is_read() -> None:
    result = parse_hey(HEY)
    assert result.ok == 3990
    assert result.failed == {"503": 8, 'Post "http://127.0.0.1:18080/v1/chat/completions": EOF': 2}
    assert result.requests_per_s == 1968.4031
    assert (result.p50_ms, result.p99_ms) == pytest.approx((7.8, 21.3))


def test_output_of_hey_without_a_summary_is_an_error() -> None:
    with pytest.raises(BenchError, match="expected a summary"):
        parse_hey("invalid flag")


def test_the_output_of_the_own_load_generator_is_read() -> None:
    text = '{"statuses": {"200": 3, "500": 1}, "latencies_s": [0.001, 0.002, 0.004, 0.009], "requests_per_s": 1000.0}'
    assert parse_own(text) == LoadResult(ok=3, failed={"500": 1}, requests_per_s=1000.0, p50_ms=2.0, p99_ms=9.0)


@pytest.mark.parametrize(("part", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_a_percentile_is_the_nearest_rank(part: float, expected: int) -> None:
    assert percentile(range(1, 101), part) == expected


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == ["a    bb  c", "aaa  b"]


def load_run(*, epp_cpu_s: float, failed: dict[str, int] | None = None) -> LoadRun:
    result = LoadResult(ok=1000, failed=failed or {}, requests_per_s=500.0, p50_ms=3.0, p99_ms=12.0)
    plain = LoadResult(ok=1000, failed={}, requests_per_s=500.0, p50_ms=1.0, p99_ms=2.0)
    return LoadRun(case="small", full=result, took_s=2.0, epp_cpu_s=epp_cpu_s, idle_cores=0.05, envoy_cpu_s=0.5,
                   half=plain if failed else result, plain=plain, rss_mib=80.0)  # fmt: skip


def test_goals_are_judged_over_all_rounds() -> None:
    results = Results(
        loads=[load_run(epp_cpu_s=0.2), load_run(epp_cpu_s=0.22)],
        idle=IdleRun(endpoints=100, cores=0.3, scrapes_per_s=400.0, rss_mib=90.0),
        starts_s=[0.7, 1.9, 0.8],
        rest_mib=80.0,
        round_end_mib=[100.0, 120.0],
    )
    figures = {figure.name: figure for figure in results.figures()}
    verdicts = {name: figure.met for name, figure in figures.items()}

    assert figures["EPP / Envoy CPU, small"].value == pytest.approx(0.42)
    assert "0.210 / 0.500 ms a request (0.110 ms without idle cost)" in figures["EPP / Envoy CPU, small"].detail
    assert verdicts == {
        "EPP / Envoy CPU, small": True,
        "idle, 100 endpoints": False,
        "p50 through Envoy, small": None,
        "p99 through Envoy, small": False,
        "memory at rest, 8 endpoints": True,
        "memory at rest, 100 endpoints": True,
        "memory after load": False,
        "start to ready, 100 endpoints": True,
    }
    assert any("not met" in line and line.startswith("idle") for line in figure_lines(figures.values()))


def test_changes_of_pods_are_told_with_median_and_tail() -> None:
    """The lists are sorted; 0.0 stands for a deletion after which no pick came."""
    deletions = DeletionRun(
        pods=20,
        from_request_ms=[0.0, 4.0, 30.0],
        from_answer_ms=[0.0, 1.0, 25.0],
        plain_ms=[0.0, 0.0, 2.0],
        picks_per_s=400.0,
    )
    lists = ListRun(pods=3000, lists=2, list_ms=[200.0, 300.0], during_ms=[2.0, 3.0, 60.0], outside_ms=[1.0, 2.0, 9.0])
    figures = {figure.name: figure for figure in Results(deletions=[deletions], lists=[lists]).figures()}

    assert figures["deletion mark to last pick, 20 pods, p50"].value == 4.0
    assert "25.0 ms from the API server's answer" in figures["deletion mark to last pick, 20 pods, p99"].detail
    assert figures["pick while 3000 pods are listed, p50"].met is None
    assert figures["pick while 3000 pods are listed, p99"].met is False
    assert "9.0 ms otherwise; 2 lists of 250 ms" in figures["pick while 3000 pods are listed, p99"].detail


async def test_a_proxy_that_is_told_to_cut_cuts_all_connections() -> None:
    async with Upstream() as server, CuttingProxy(server.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        assert proxy.is_quiet(1, 0.0)
        proxy.cut()
        with suppress(ConnectionError):
            await reader.read()
        assert reader.at_eof() or reader.exception() is not None
        assert not proxy.is_quiet(1, 0.0), "nothing came after the cut"
        writer.close()


def test_failed_requests_are_told_by_case() -> None:
    assert Results(loads=[load_run(epp_cpu_s=0.2, failed={"503": 4})]).failed == {"small: 503": 4}


def test_collapsed_stacks_give_own_and_inclusive_time() -> None:
    own, inclusive = read_collapsed("run;serve 1\nrun;serve;pick 2\nrun;serve;pick;serve 1\n")
    assert own == {"serve": 0.5, "pick": 0.5}
    assert inclusive == {"run": 1.0, "serve": 1.0, "pick": 0.75}


@pytest.mark.parametrize("case", LOAD_CASES, ids=lambda case: case.name)
def test_a_chat_body_has_the_length_of_its_case(case: LoadCase) -> None:
    assert len(chat_body(case.body_bytes)) == case.body_bytes


def test_the_messages_of_a_request_hold_its_whole_body() -> None:
    body = chat_body(400_000)
    assert len(messages_of(body)) == 18
    assert sum(map(len, messages_of(body))) > len(body)


def test_every_part_can_be_measured() -> None:
    parts = list(measure_parts(0.001))
    assert len({part.name for part in parts}) == len(parts)
    assert all(0 < part.median_us <= part.p99_us for part in parts)
    Results(parts=parts).as_json()


def test_what_a_process_uses_is_read_from_proc() -> None:
    own = os.getpid()
    threads_s = thread_cpu_s(own)
    # Both are whole steps of 0.01 s, user and system time each for itself.
    assert 0 < sum(threads_s.values()) < cpu_s(own) + 0.025
    assert rss_mib(own) > 1


def test_a_record_names_the_version_of_envoy() -> None:
    assert description()["versions"]["envoy"].count(".") == 2


def test_the_core_is_given_back() -> None:
    before = os.sched_getaffinity(0)
    with on_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_the_configurations_of_envoy_take_free_ports() -> None:
    for text in (envoys.upstream(Path("/page")), envoys.front(9002), envoys.plain([("127.0.1.1", 8000)])):
        assert text.count('"port_value": 0') >= 2


def test_the_command_names_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        bench.main(["--case", "huge"])
    assert end.value.code == 2
    assert "small-100" in capsys.readouterr().err
