"""What outcomes say about the drain and the crash."""

from typing import Any

import pytest

from epp.demo.tally import Crash, Drain, Ending, Outcome, Tally, Window, complaints, quantile, seen

DRAIN = Drain(server="a", window=Window(10, 14), idle_after_s=2.0, process_ended="exit code 0")
CRASH = Crash(server="b", window=Window(20, 26), in_flight_at_kill=4, restarted_after_s=3.0, answered_after_s=5.0)


def outcome(ended_at_s: float, ending: Ending = Ending.ANSWERED, **fields: Any) -> Outcome:
    values: dict[str, Any] = {"streaming": False, "server": "a", "began_at_s": ended_at_s - 1, "seen": ending.value}
    return Outcome(**(values | fields), ended_at_s=ended_at_s, ending=ending)


def tally(*outcomes: Outcome) -> Tally:
    result = Tally()
    for one in (outcome(1), *outcomes):
        result.add(one)
    return result


def test_all_is_well_when_every_request_was_answered() -> None:
    assert complaints(tally(outcome(5), outcome(12), outcome(22)), DRAIN, CRASH) == []


@pytest.mark.parametrize("ending", [Ending.REFUSED, Ending.CUT])
def test_clean_errors_in_the_crash_are_no_complaint(ending: Ending) -> None:
    assert complaints(tally(outcome(20.1, ending)), DRAIN, CRASH) == []


@pytest.mark.parametrize("ending", [Ending.REFUSED, Ending.CUT])
@pytest.mark.parametrize("server", ["a", "b", None])
def test_any_failure_while_the_server_drains_is_lost_to_the_drain(ending: Ending, server: str | None) -> None:
    found = complaints(tally(outcome(11, ending, server=server)), DRAIN, CRASH)

    assert found == [f"1 request failed while a drained: {ending.value} x1"]


@pytest.mark.parametrize("at_s", [10, 14])
def test_the_drain_counts_from_its_first_to_its_last_moment(at_s: float) -> None:
    assert "failed while a drained" in complaints(tally(outcome(at_s, Ending.REFUSED)), DRAIN, CRASH)[0]


@pytest.mark.parametrize("ending", [Ending.BROKEN, Ending.HUNG])
@pytest.mark.parametrize("at_s", [5, 22, 40])
def test_what_is_neither_an_answer_nor_a_clean_error_is_a_complaint_at_any_time(ending: Ending, at_s: float) -> None:
    found = complaints(tally(outcome(at_s, ending)), DRAIN, CRASH)

    assert found == [f"1 request got neither an answer nor a clean error: {ending.value} x1"]


@pytest.mark.parametrize("at_s", [5, 17, 27])
def test_an_error_that_nothing_explains_is_a_complaint(at_s: float) -> None:
    found = complaints(tally(outcome(at_s, Ending.REFUSED), outcome(at_s, Ending.CUT)), DRAIN, CRASH)

    assert found == ["2 requests failed outside the drain and the crash: refused x1, cut x1"]


def test_a_drain_that_never_ended_is_a_complaint() -> None:
    endless = Drain(server="a", window=Window(10, 30), idle_after_s=None, process_ended="still runs")

    assert complaints(tally(), endless, CRASH) == [
        "the picker never counted 0 requests in flight on a, so the drain did not end"
    ]


def test_a_demo_without_an_answer_proves_nothing() -> None:
    assert complaints(Tally(), DRAIN, CRASH) == ["no request was answered"]


def test_answers_are_counted_by_server() -> None:
    some = tally(outcome(2, server="b"), outcome(3, Ending.CUT, server="b"))

    assert (len(some), len(some.answered()), len(some.answered("b")), len(some.failed())) == (3, 2, 1, 1)


def test_what_clients_saw_is_listed_with_the_most_frequent_first() -> None:
    outcomes = [outcome(1, seen="stream cut"), outcome(1, seen="503"), outcome(1, seen="503")]

    assert seen(outcomes) == "503 x2, stream cut x1"


@pytest.mark.parametrize(
    ("values", "ratio", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([4, 1, 3, 2], 0.5, 2), ([4, 1, 3, 2], 0.51, 3), (range(1, 101), 0.99, 99)],
)
def test_a_quantile_is_one_of_the_values(values: list[float], ratio: float, expected: float | None) -> None:
    assert quantile(values, ratio) == expected
