"""The report."""

import re

from epp.demo.fleet import ServerPlan
from epp.demo.picker_pages import PickTimes
from epp.demo.report import report, server_table
from epp.demo.tally import Ending, Tally
from tests.demo.test_tally import CRASH, DRAIN, outcome, tally

FLEET = (
    ServerPlan(name="a", engine="vllm", slots=1, decode_rate=1),
    ServerPlan(name="b", engine="vllm", slots=1, decode_rate=1),
    ServerPlan(name="c", engine="ollama", slots=1, decode_rate=1),
)
TIMES = PickTimes(picks=5, mean_s=0.00004, p50_at_most_s=0.00005, p99_at_most_s=0.0001)


def lines_of(outcomes: Tally) -> list[str]:
    return list(report(outcomes, DRAIN, CRASH, TIMES, FLEET))


def test_each_server_has_a_line_and_so_has_what_nobody_answered() -> None:
    some = tally(
        outcome(2, server="a", began_at_s=0, streaming=True, first_byte_s=0.25),
        outcome(3, server="b"),
        outcome(21, Ending.CUT, server="b", streaming=True, first_byte_s=0.1),
        outcome(21, Ending.REFUSED, server=None),
    )

    assert [re.sub("  +", " | ", line) for line in server_table(some, FLEET)[2:]] == [
        "a | vllm | 2 | 40.0 % | 1.00 s | 2.00 s | 1 | 250 ms | 250 ms | 0",
        "b | vllm | 2 | 40.0 % | 1.00 s | 1.00 s | 1 | - | - | 1",
        "c | ollama | 0 | 0.0 % | - | - | 0 | - | - | 0",
        "(none) | - | 1 | 20.0 % | - | - | 0 | - | - | 1",
        "total | 5 | 100.0 % | 1.00 s | 2.00 s | 2 | 250 ms | 250 ms | 2",
    ]


def test_requests_are_added_up_by_engine() -> None:
    lines = lines_of(tally(outcome(2, server="b"), outcome(3, server="c")))

    assert "requests per engine: vllm 2, ollama 1" in lines


def test_the_drain_says_what_finished_on_the_server_and_what_was_lost() -> None:
    lines = lines_of(
        tally(outcome(11, streaming=True), outcome(12), outcome(13, server="b"), outcome(13, Ending.CUT, seen="cut"))
    )

    assert "drain of a: 2 requests finished on it meanwhile, 1 of them streams; idle after 2.0 s; process: exit code 0" in lines
    assert "  lost to the drain: 1 (cut x1)" in lines
    assert lines[-2] == "FAILED"


def test_the_crash_says_what_clients_saw_and_when_they_had_asked() -> None:
    lines = lines_of(
        tally(outcome(20.1, Ending.CUT, seen="stream cut"), outcome(23, Ending.REFUSED, seen="503", began_at_s=22.9))
    )

    assert "crash of b: 4 requests were on it; ran again after 3.0 s, answered again after 5.0 s" in lines
    assert "  errors in the crash: 2 (stream cut x1, 503 x1)" in lines
    assert any(line.startswith("  1 of them were sent before the kill, 1 after it") for line in lines)
    assert lines[-1].startswith("OK")


def test_decision_times_are_named_as_bounds() -> None:
    assert "decision time: mean 40 us, p50 at most 50 us, p99 at most 100 us (5 picks, epp_pick_duration_seconds)" in lines_of(
        tally()
    )
    assert any("no epp_pick_duration_seconds" in line for line in report(tally(), DRAIN, CRASH, None, FLEET))


def test_the_hung_are_counted() -> None:
    assert "hung: 1" in lines_of(tally(outcome(5, Ending.HUNG)))
