"""When to resume, when to list again, and how long to wait."""

import random

import pytest

from epp.discovery.kubernetes.api_errors import ApiError, BusyError
from epp.discovery.kubernetes.watch_plan import (
    PAUSE_MAX_S,
    STEADY_S,
    WATCH_MAX_S,
    WATCH_MIN_S,
    BackOff,
    Ending,
    Next,
    WatchPlan,
    is_before,
    is_steady,
    proper_end,
)

BROKEN = [Ending.EARLY, Ending.CUT, Ending.SILENT, Ending.REFUSED]


class TopRandom(random.Random):
    """Always the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


def plan() -> WatchPlan:
    return WatchPlan(TopRandom())


def after(
    course: WatchPlan, ending: Ending, *, lived_s: float = 0.0, event: bool = False, error: ApiError | None = None
) -> Next:
    return course.after_watch(ending, lived_s=lived_s, brought_event=event, error=error)


def test_a_watch_that_reached_its_time_limit_is_resumed_at_once() -> None:
    assert after(plan(), Ending.TIMED_OUT, lived_s=50.0) == Next(resume=True, pause_s=0.0)


@pytest.mark.parametrize("ending", BROKEN)
def test_after_any_other_end_the_list_is_read_again_soon(ending: Ending) -> None:
    assert after(plan(), ending) == Next(resume=False, pause_s=0.1)


@pytest.mark.parametrize("ending", BROKEN)
def test_pauses_double_up_to_their_limit(ending: Ending) -> None:
    course = plan()
    pauses_s = [after(course, ending).pause_s for _ in range(11)]
    assert pauses_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0])


def test_failed_lists_and_broken_watches_share_their_back_off() -> None:
    course = plan()
    assert course.after_list_error(BusyError(503, "", "")) == pytest.approx(0.1)
    assert after(course, Ending.CUT).pause_s == pytest.approx(0.2)
    assert course.after_list_error(BusyError(503, "", "")) == pytest.approx(0.4)


def test_the_first_410_is_followed_by_a_list_at_once_and_the_second_one_waits() -> None:
    course = plan()
    assert after(course, Ending.GONE) == Next(resume=False, pause_s=0.0)
    assert after(course, Ending.GONE) == Next(resume=False, pause_s=0.1)
    assert after(course, Ending.GONE, lived_s=STEADY_S) == Next(resume=False, pause_s=0.0)


@pytest.mark.parametrize(
    ("lived_s", "event", "steady"), [(10.0, False, True), (9.9, False, False), (1.0, True, True), (0.5, True, False)]
)
def test_pauses_are_short_again_after_a_watch_that_worked(lived_s: float, event: bool, steady: bool) -> None:
    course = plan()
    for _ in range(5):
        after(course, Ending.CUT)
    assert is_steady(lived_s, event) is steady
    assert (after(course, Ending.CUT, lived_s=lived_s, event=event).pause_s == pytest.approx(0.1)) is steady


def test_the_server_may_ask_for_a_longer_pause_within_reason() -> None:
    course = plan()
    assert course.after_list_error(BusyError(429, "", "", retry_after_s=7.0)) == pytest.approx(7.1)
    assert after(course, Ending.REFUSED, error=BusyError(503, "", "", retry_after_s=3600.0)).pause_s == pytest.approx(
        PAUSE_MAX_S + 0.2
    )


def test_pauses_are_spread_over_their_whole_range() -> None:
    pauses_s = [BackOff(random.Random(seed), first_s=1.0).pause_s() for seed in range(200)]
    assert min(pauses_s) < 0.1
    assert max(pauses_s) > 0.9
    assert max(pauses_s) <= 1.0


def test_a_kind_that_is_not_installed_is_looked_for_about_once_a_minute() -> None:
    assert 54.0 <= WatchPlan(random.Random(1)).while_absent() <= 66.0


def test_time_limits_of_watches_are_spread() -> None:
    course = WatchPlan(random.Random(1))
    limits_s = {course.watch_limit_s() for _ in range(500)}
    assert limits_s == set(range(WATCH_MIN_S, WATCH_MAX_S + 1))


def test_a_proper_end_near_the_time_limit_is_the_time_limits() -> None:
    assert proper_end(45.0, 50.0) is Ending.TIMED_OUT
    assert proper_end(44.9, 50.0) is Ending.EARLY


@pytest.mark.parametrize(
    ("version", "other", "before"),
    [("9", "10", True), ("10", "9", False), ("9", "9", False), ("a", "9", False), ("9", "", False)],
)
def test_versions_are_compared_as_numbers_where_they_are_some(version: str, other: str, before: bool) -> None:
    assert is_before(version, other) is before
