"""How often an endpoint is read, without a loop and without a clock."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scrape.pace import FAILURE_INTERVAL_S, JITTER_RATIO, LONG_TIMEOUT_FAILURES, OWN_TIME_RATIO, Pace
from epp.scrape.reasons import Reason


def pace(*, interval_s: float = 0.05, fair_share_s: float = 0.0, seed: int = 1) -> Pace:
    return Pace(interval_s=interval_s, fair_share_s=lambda: fair_share_s, random=Random(seed))


def read(rhythm: Pace, server_s: float, times: int = 8) -> Pace:
    for _ in range(times):
        rhythm.succeeded(server_s)
    return rhythm


def test_the_interval_is_the_one_that_was_asked_for() -> None:
    assert read(pace(), 0.0002).interval_s == 0.05


def test_a_server_that_needs_1_ms_a_page_keeps_the_fast_rate() -> None:
    """Field report 36: 1 ms in each 50 ms is the 2 % that is allowed."""
    assert read(pace(), 0.001).interval_s == pytest.approx(0.05)


def test_a_server_that_needs_30_ms_a_page_is_read_at_most_twice_a_second() -> None:
    """Field report 36: pages are rendered on the loop that streams tokens; at 20 a second they would take 60 % of it."""
    rhythm = pace()
    for _ in range(20):
        rhythm.succeeded(0.03)
        assert rhythm.interval_s >= 0.5

    assert rhythm.interval_s == pytest.approx(1.5)


@given(server_s=st.floats(0, 1), asked_s=st.floats(0.001, 10))
def test_scrapes_never_take_more_than_2_percent_of_the_servers_time(server_s: float, asked_s: float) -> None:
    rhythm = read(pace(interval_s=asked_s), server_s)

    assert server_s / rhythm.interval_s <= 0.02 + 1e-12
    assert rhythm.interval_s >= asked_s


def test_a_cold_start_does_not_put_off_the_second_read_for_long() -> None:
    assert read(pace(), 0.9, times=1).interval_s == 0.5


def test_waiting_is_not_taken_for_rendering() -> None:
    """A server answers between two batches: how long that takes varies, what rendering takes is in every read."""
    rhythm = pace()
    for waited_s in (0.2, 0.05, 0.0, 0.3, 0.1, 0.25, 0.07, 0.15):
        rhythm.succeeded(0.001 + waited_s)

    assert rhythm.interval_s == pytest.approx(0.05)


def test_a_page_that_became_fast_again_is_read_fast_again_at_once() -> None:
    rhythm = read(pace(), 0.03)
    rhythm.succeeded(0.0005)

    assert rhythm.interval_s == 0.05


def test_many_endpoints_share_the_highest_rate() -> None:
    assert pace(fair_share_s=100 / 400).interval_s == 0.25


def test_a_search_that_takes_several_requests_counts_them_all() -> None:
    rhythm = pace(fair_share_s=0.1)
    rhythm.requests_per_scrape = 5

    assert rhythm.interval_s == 0.5


def test_the_pages_own_rhythm_is_never_undercut() -> None:
    rhythm = pace()
    rhythm.min_interval_s = 1.0

    assert all(rhythm.pause_s(0.25) >= 0.75 for _ in range(200))


def test_pauses_are_jittered_around_the_interval_and_make_up_for_the_scrape_itself() -> None:
    rhythm = pace()
    first, *others = [rhythm.pause_s(0.01) + 0.01 for _ in range(2000)]

    assert 0 < first <= 0.05
    assert min(others) >= 0.05 * (1 - JITTER_RATIO)
    assert max(others) <= 0.05 * (1 + JITTER_RATIO)
    assert sum(others) / len(others) == pytest.approx(0.05, rel=0.02)
    assert len(set(others)) > 1000


def test_endpoints_that_joined_together_drift_apart_at_once() -> None:
    firsts = [pace(interval_s=1.0, seed=seed).pause_s(0.0) for seed in range(50)]

    assert max(firsts) - min(firsts) > 0.5


def test_a_scrape_longer_than_its_interval_still_leaves_a_pause() -> None:
    assert pace().pause_s(3.0) > 0


@pytest.mark.parametrize("reason", [Reason.CONNECT, Reason.STATUS, Reason.GARBAGE, Reason.UNKNOWN_ENGINE])
def test_failures_in_a_row_stretch_the_interval_so_far_that_a_recovery_is_still_seen_soon(reason: Reason) -> None:
    rhythm = pace()
    seen = []
    for _ in range(2000):
        rhythm.failed(reason)
        seen.append(rhythm.interval_s)

    assert seen[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert seen == sorted(seen)
    assert seen[-1] == FAILURE_INTERVAL_S


def test_one_good_read_ends_the_back_off() -> None:
    rhythm = pace()
    for _ in range(10):
        rhythm.failed(Reason.CONNECT)
    rhythm.succeeded(0.0)

    assert rhythm.interval_s == 0.05


def test_a_server_that_never_answers_in_time_is_asked_less_and_less() -> None:
    """Field report 36: a page that takes 41 s to render is asked for in vain, and each try is work for the server."""
    rhythm = pace()
    for _ in range(LONG_TIMEOUT_FAILURES):
        rhythm.failed(Reason.TIMEOUT)
    assert rhythm.interval_s == FAILURE_INTERVAL_S

    rhythm.failed(Reason.TIMEOUT)
    assert rhythm.interval_s == 10.0


@pytest.mark.parametrize("reason", [Reason.NOT_ENABLED, Reason.NEEDS_KEY])
def test_a_page_that_is_switched_off_is_asked_for_rarely(reason: Reason) -> None:
    """Field report 43: the server has no such page."""
    rhythm = pace()
    rhythm.failed(reason)
    assert rhythm.interval_s == 1.0
    for _ in range(5):
        rhythm.failed(reason)

    assert rhythm.interval_s == 15.0


def test_an_interval_longer_than_any_back_off_stays() -> None:
    rhythm = pace(interval_s=60.0)
    rhythm.failed(Reason.CONNECT)

    assert rhythm.interval_s == 60.0


@pytest.mark.parametrize("reason", [None, Reason.UNKNOWN_ENGINE])
def test_a_page_that_costs_this_process_much_is_read_rarely(reason: Reason | None) -> None:
    rhythm = pace()
    rhythm.succeeded(0.0)
    if reason is not None:
        rhythm.failed(reason)
    rhythm.own_s = 0.2

    assert 0.2 / rhythm.interval_s <= OWN_TIME_RATIO + 1e-12
