"""Marks that drain calls leave on endpoints of the pool."""

from epp.pool.drain_marks import DrainMark
from epp.pool.endpoint import EndpointState
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec


def marked(pool: PoolState, clock: FakeClock, keep_s: float | None = None) -> None:
    now_s = clock.now_s
    pool.mark(pool.endpoints[0], DrainMark(marked_at_s=now_s, ends_at_s=None if keep_s is None else now_s + keep_s))


def test_a_mark_stops_picks_at_once_and_keeps_the_count() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    first = pool.endpoints[0]
    pool.count_pick(first)
    marked(pool, clock)
    assert [e.spec.name for e in pool.ready] == ["e2"]
    assert (first.state, first.reason, first.in_flight_requests) == (EndpointState.DRAINING, "a drain call asked for it", 1)
    assert pool.draining == (first,)


def test_a_mark_survives_what_discovery_says_of_the_same_incarnation() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, incarnation="uid-1/0")], clock)
    marked(pool, clock)
    pool.sync([spec(1, incarnation="uid-1/0", labels={"role": "decode"})])
    assert pool.ready == ()


def test_a_mark_goes_with_its_incarnation() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, incarnation="uid-1/0")], clock)
    marked(pool, clock)
    pool.sync([spec(1, incarnation="uid-1/1")])
    assert len(pool.ready) == 1


def test_a_mark_goes_even_when_the_incarnation_that_left_comes_back_in_time() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pool.count_pick(pool.endpoints[0])
    marked(pool, clock)
    pool.sync([])
    pool.sync([spec(1)])
    assert len(pool.ready) == 1


def test_a_marked_endpoint_is_ready_again_only_when_discovery_agrees() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    marked(pool, clock)
    pool.sync([spec(1, draining=True)])
    assert pool.lift_mark(pool.endpoints[0])
    assert pool.ready == ()
    pool.sync([spec(1)])
    assert len(pool.ready) == 1


def test_what_discovery_takes_back_leaves_the_mark() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, draining=True)], clock)
    marked(pool, clock)
    pool.sync([spec(1)])
    assert pool.ready == ()
    assert pool.lift_mark(pool.endpoints[0])
    assert len(pool.ready) == 1


def test_an_unready_endpoint_with_a_mark_is_no_last_resort() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, not_ready_reason="pod condition Ready is False")], clock)
    marked(pool, clock)
    (endpoint,) = pool.endpoints
    assert endpoint.reason == "a drain call asked for it, and pod condition Ready is False"
    assert pool.draining == ()
    pool.lift_mark(endpoint)
    assert endpoint.state is EndpointState.UNREADY


def test_a_mark_ends_by_itself_when_its_time_is_over() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    marked(pool, clock, keep_s=10.0)
    clock.advance(9.9)
    assert pool.end_marks() == []
    clock.advance(0.1)
    assert pool.end_marks() == [pool.endpoints[0]]
    assert len(pool.ready) == 1
    assert pool.endpoints[0].ramps_up_from_s == clock.now_s


def test_a_mark_without_an_end_stays() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    marked(pool, clock)
    clock.advance(1e6)
    assert pool.end_marks() == []
    assert pool.ready == ()


def test_an_endpoint_that_has_left_takes_no_mark() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    endpoint = pool.endpoints[0]
    pool.count_pick(endpoint)
    pool.sync([])
    pool.mark(endpoint, DrainMark(marked_at_s=clock.now_s))
    assert endpoint.mark is None
    assert not pool.lift_mark(endpoint)
    assert endpoint.reason == "no longer in the pool"


def test_marks_are_compared_by_their_end() -> None:
    for_ever, short, long = (DrainMark(marked_at_s=0.0, ends_at_s=end) for end in (None, 5.0, 9.0))
    assert for_ever.outlasts(long)
    assert long.outlasts(short)
    assert not short.outlasts(long)
    assert not long.outlasts(for_ever)
    assert not for_ever.outlasts(for_ever)
    assert (for_ever.left_s(1.0), short.left_s(1.0), short.left_s(9.0)) == (None, 4.0, 0.0)


def test_who_waits_for_the_last_request_is_told_once() -> None:
    pool = pool_of(1)
    endpoint = pool.endpoints[0]
    told: list[str] = []
    pool.count_pick(endpoint)
    pool.count_pick(endpoint)

    def leaves() -> None:
        told.append("never")

    pool.watch_idle(endpoint, lambda: told.append("idle"))
    pool.watch_idle(endpoint, leaves)
    pool.unwatch_idle(endpoint, leaves)
    pool.count_release(endpoint)
    assert told == []
    pool.count_release(endpoint)
    pool.count_pick(endpoint)
    pool.count_release(endpoint)
    assert told == ["idle"]


def test_who_waits_is_told_of_an_endpoint_that_has_left_too() -> None:
    pool = pool_of(1)
    endpoint = pool.endpoints[0]
    told: list[str] = []
    pool.count_pick(endpoint)
    pool.watch_idle(endpoint, lambda: told.append("idle"))
    pool.sync([])
    pool.count_release(endpoint)
    assert told == ["idle"]
