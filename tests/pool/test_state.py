"""Membership and counts of the pool."""

from hypothesis import given
from hypothesis import strategies as st

from epp.pool.endpoint import Endpoint, EndpointState
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec


def names(endpoints: tuple[Endpoint, ...]) -> list[str]:
    return [e.spec.name for e in endpoints]


def test_what_is_absent_leaves_and_what_is_new_joins() -> None:
    pool = pool_of(2)
    pool.sync([spec(2), spec(3)])
    assert names(pool.ready) == ["e2", "e3"]


def test_draining_and_unready_endpoints_are_no_candidates_but_stay_visible() -> None:
    pool = pool_of([spec(1), spec(2, draining=True), spec(3, not_ready_reason="container is not ready")])
    assert names(pool.ready) == ["e1"]
    states = {e.spec.name: (e.state, e.reason) for e in pool.endpoints}
    assert states["e2"] == (EndpointState.DRAINING, "marked as draining")
    assert states["e3"] == (EndpointState.UNREADY, "container is not ready")


def test_an_endpoint_that_left_keeps_its_count_until_its_streams_end() -> None:
    pool = pool_of(1)
    endpoint = pool.endpoints[0]
    gone: list[Endpoint] = []
    pool.on_gone(gone.append)
    pool.count_pick(endpoint)
    pool.sync([])
    assert names(pool.ready) == []
    assert names(pool.leaving) == ["e1"]
    assert pool.in_flight_requests == 1
    pool.count_release(endpoint)
    assert names(pool.leaving) == []
    assert gone == [endpoint]


def test_an_endpoint_that_comes_back_in_time_still_has_its_count() -> None:
    pool = pool_of(1)
    pool.count_pick(pool.endpoints[0])
    pool.sync([])
    pool.sync([spec(1)])
    assert pool.endpoints[0].in_flight_requests == 1
    assert pool.leaving == ()


def test_another_incarnation_at_the_same_address_inherits_nothing() -> None:
    """Field report 10, as far as it needs no cluster."""
    pool = pool_of([spec(1, incarnation="uid-1/0")])
    old = pool.endpoints[0]
    pool.count_pick(old)
    pool.sync([spec(1, incarnation="uid-1/1")])
    new = pool.endpoints[0]
    assert new is not old
    assert new.in_flight_requests == 0
    pool.count_release(old)
    assert (old.in_flight_requests, new.in_flight_requests) == (0, 0)


def test_founding_members_do_not_ramp_up_and_late_ones_do() -> None:
    clock = FakeClock(50.0)
    pool = pool_of(1, clock)
    pool.sync([spec(1), spec(2)])
    first, late = pool.endpoints
    assert first.ramps_up_from_s == float("-inf")
    assert late.ramps_up_from_s == 50.0


def test_an_endpoint_that_becomes_ready_again_ramps_up() -> None:
    clock = FakeClock(50.0)
    pool = pool_of([spec(1, not_ready_reason="loading")], clock)
    clock.advance(5.0)
    pool.sync([spec(1)])
    assert pool.ready[0].ramps_up_from_s == 55.0


def test_listeners_hear_of_joins_changes_and_leaves() -> None:
    pool = PoolState(FakeClock(), name="p", source="static")
    heard: list[str] = []
    pool.on_listed(lambda: heard.append("listed"))
    pool.on_join(lambda e: heard.append(f"join {e.spec.name}"))
    pool.on_change(lambda e: heard.append(f"change {e.spec.name} {e.spec.weight}"))
    pool.on_leave(lambda e: heard.append(f"leave {e.spec.name}"))
    pool.sync([spec(1), spec(2)])
    pool.sync([spec(1, weight=2.0), spec(2)])
    pool.sync([spec(1, weight=2.0)])
    assert heard == ["join e1", "join e2", "listed", "change e1 2.0", "leave e2"]


def test_listed_is_told_at_once_when_it_is_true_already() -> None:
    heard: list[str] = []
    pool_of(0).on_listed(lambda: heard.append("listed"))
    assert heard == ["listed"]


memberships = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.booleans()), max_size=6)


@given(st.lists(st.one_of(memberships, st.integers(0, 30)), max_size=30))
def test_any_history_ends_in_what_discovery_said_last_and_in_exact_counts(
    history: list[list[tuple[int, int, bool]] | int],
) -> None:
    """Interleaved memberships, picks and releases: the sum of all counts is what is outstanding, and it returns to zero."""
    pool = pool_of(0)
    outstanding: list[Endpoint] = []
    for step in history:
        if isinstance(step, list):
            pool.sync([spec(n, incarnation=str(life), draining=draining) for n, life, draining in step])
            first = {n: (life, draining) for n, life, draining in reversed(step)}
            assert {e.key for e in pool.endpoints} == {(spec(n).address, str(life)) for n, (life, _) in first.items()}
            assert {e.address for e in pool.ready} == {spec(n).address for n, (_, draining) in first.items() if not draining}
        elif step % 2 and pool.ready:
            endpoint = pool.ready[step % len(pool.ready)]
            pool.count_pick(endpoint)
            outstanding.append(endpoint)
        elif outstanding:
            pool.count_release(outstanding.pop(step % len(outstanding)))
        assert pool.in_flight_requests == len(outstanding)
    for endpoint in outstanding:
        pool.count_release(endpoint)
    assert pool.in_flight_requests == 0
    assert pool.leaving == ()
