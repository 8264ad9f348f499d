"""The allowance for frames that cost a peer nothing, and limits that cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.h2.limits import Allowance, Limits


def test_the_burst_is_there_from_the_start_and_no_more() -> None:
    allowance = Allowance(3, 1.0, now_s=10.0)

    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]


def test_time_gives_new_tokens_but_never_more_than_the_burst() -> None:
    allowance = Allowance(3, 2.0, now_s=0.0)
    for _ in range(3):
        allowance.take(0.0)

    assert not allowance.take(0.4)
    assert allowance.take(0.5)
    assert [allowance.take(1_000.0) for _ in range(4)] == [True, True, True, False]


def test_dear_work_takes_more_tokens_at_once_or_none() -> None:
    allowance = Allowance(5, 1.0, now_s=0.0)

    assert allowance.take(0.0, 3)
    assert not allowance.take(0.0, 3)
    assert allowance.take(0.0, 2)


@given(st.lists(st.floats(0.0, 3.0), max_size=200), st.integers(1, 20), st.floats(0.1, 50.0))
def test_over_any_time_no_more_is_taken_than_burst_and_rate_allow(steps: list[float], burst: int, per_second: float) -> None:
    allowance = Allowance(burst, per_second, now_s=0.0)
    now_s = 0.0
    taken = 0
    for step in steps:
        now_s += step
        taken += allowance.take(now_s)

    assert taken <= burst + now_s * per_second + 1e-6


@pytest.mark.parametrize("window", [-1, 0, 65_534, 2**31])
def test_a_stream_window_that_peers_cannot_know_in_time_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="stream_window_bytes: expected 65535 to 2147483647, found"):
        Limits(stream_window_bytes=window)


@pytest.mark.parametrize("window", [0, 65_535, 2**31])
def test_a_connection_window_that_cannot_be_announced_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="connection_window_bytes: expected 65536 to 2147483647, found"):
        Limits(connection_window_bytes=window)
