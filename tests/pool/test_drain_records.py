"""What is measured when endpoints leave rotation."""

import pytest

from epp.pool.drain_marks import DrainMark
from epp.pool.drain_records import MAX_RECORDS, DrainRecord, DrainRecords
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec


def ended_in(pool: PoolState) -> list[tuple[float, float]]:
    """(last pick, last stream) of each drain that ends from now on."""
    ended: list[tuple[float, float]] = []
    pool.drains.on_end(lambda record: ended.append((record.latest_pick_s, record.latest_stream_s)))
    return ended


def only(pool: PoolState) -> DrainRecord:
    (record,) = pool.drains.newest()
    return record


def test_a_drain_is_measured_from_first_sight_to_the_end_of_the_last_stream() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    ended = ended_in(pool)
    (endpoint,) = pool.endpoints
    pool.count_pick(endpoint)
    pool.mark(endpoint, DrainMark(marked_at_s=clock.now_s))
    clock.advance(7.0)
    pool.count_release(endpoint)
    record = only(pool)
    assert (record.seen_by, record.reason, record.in_flight_requests) == ("call", "a drain call asked for it", 1)
    assert (record.last_pick_s, record.last_stream_s, record.over) == (0.0, 7.0, False)
    pool.sync([])
    assert record.over
    assert ended == [(0.0, 7.0)]


def test_what_shows_the_drain_first_is_what_counts() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pool.sync([spec(1, draining=True, draining_reason="the pod is being deleted")])
    clock.advance(1.0)
    pool.mark(pool.endpoints[0], DrainMark(marked_at_s=clock.now_s))
    pool.sync([])
    record = only(pool)
    assert (record.seen_by, record.reason, record.times) == ("static", "the pod is being deleted", 1)
    assert record.as_json()["at"] == 1_700_001_000.0


def test_a_request_that_envoy_sends_there_all_the_same_is_a_late_pick() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    ended = ended_in(pool)
    (endpoint,) = pool.endpoints
    pool.mark(endpoint, DrainMark(marked_at_s=clock.now_s))
    clock.advance(2.0)
    pool.count_moved(endpoint)
    clock.advance(1.0)
    pool.count_release(endpoint)
    pool.lift_mark(endpoint)
    assert only(pool).late_picks == 1
    assert ended == [(2.0, 3.0)]


def test_the_last_resort_is_no_late_pick() -> None:
    pool = pool_of([spec(1)])
    (endpoint,) = pool.endpoints
    pool.mark(endpoint, DrainMark(marked_at_s=0.0))
    pool.count_pick(endpoint)
    assert only(pool).late_picks == 0


def test_requests_that_are_cut_after_first_sight_are_counted() -> None:
    pool = pool_of(1)
    cuts: list[str] = []
    pool.drains.on_cut(lambda: cuts.append("cut"))
    (endpoint,) = pool.endpoints
    for _ in range(3):
        pool.count_pick(endpoint)
    pool.count_release(endpoint, cut=True)
    pool.sync([])
    pool.count_release(endpoint, cut=True)
    pool.count_release(endpoint)
    assert only(pool).cut_requests == 1
    assert cuts == ["cut"]
    assert only(pool).over


def test_an_endpoint_that_was_draining_when_it_was_first_seen_says_nothing() -> None:
    pool = pool_of([spec(1, draining=True)])
    pool.sync([])
    assert pool.drains.newest() == []


def test_an_endpoint_that_never_was_ready_and_leaves_idle_says_nothing() -> None:
    pool = pool_of([spec(1, not_ready_reason="container is not ready")])
    pool.sync([])
    assert pool.drains.newest() == []


def test_an_endpoint_that_became_unready_and_leaves_with_requests_is_measured() -> None:
    pool = pool_of(1)
    (endpoint,) = pool.endpoints
    pool.count_pick(endpoint)
    pool.sync([spec(1, not_ready_reason="container is not ready")])
    pool.sync([])
    assert (only(pool).in_flight_requests, only(pool).reason) == (1, "no longer in the pool")


def test_a_flapping_endpoint_is_one_record_with_the_slowest_of_its_times() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    ended = ended_in(pool)
    for late_s in (1.0, 9.0, 2.0):
        pool.sync([spec(1, draining=True)])
        (endpoint,) = pool.endpoints
        clock.advance(late_s)
        pool.count_moved(endpoint)
        pool.count_release(endpoint)
        pool.sync([spec(1)])
    record = only(pool)
    assert (record.times, record.last_pick_s, record.late_picks) == (3, 9.0, 3)
    assert ended == [(1.0, 1.0), (9.0, 9.0), (2.0, 2.0)]
    assert pool.drains.recommended_min_wait_s == 19.0


def test_another_incarnation_is_another_record() -> None:
    pool = pool_of([spec(1, incarnation="uid-1/0")])
    pool.sync([spec(1, incarnation="uid-1/1")])
    pool.sync([])
    assert [record.key[1] for record in pool.drains.newest()] == ["uid-1/1", "uid-1/0"]


def test_an_endpoint_that_comes_back_while_it_leaves_ends_its_drain() -> None:
    pool = pool_of(1)
    (endpoint,) = pool.endpoints
    pool.count_pick(endpoint)
    pool.sync([])
    pool.sync([spec(1)])
    assert only(pool).over
    assert endpoint.drain is None


def drained(records: DrainRecords, clock: FakeClock, number: int, last_pick_s: float) -> None:
    record = records.begin((f"e{number}", ""), name="", seen_by="file", reason=None, in_flight_requests=0)
    if last_pick_s:
        clock.advance(last_pick_s)
        records.picked(record)
    records.end(record)


def test_records_are_bounded() -> None:
    clock = FakeClock()
    records = DrainRecords(clock)
    for number in range(MAX_RECORDS + 10):
        drained(records, clock, number, 0.0)
    assert len(records.newest()) == MAX_RECORDS
    assert records.newest()[-1].key == ("e10", "")


@pytest.mark.parametrize(
    ("last_picks_s", "recommended_s"),
    [
        ([], None),
        ([0.0], 1.0),
        ([0.0] * 99 + [60.0], 1.0),
        ([0.0] * 94 + [3.0] * 6, 7.0),
        ([3.0], 7.0),
        ([60.0] * 5 + [0.0] * 100, 1.0),
    ],
)
def test_what_to_wait_covers_nearly_all_of_the_newest(last_picks_s: list[float], recommended_s: float | None) -> None:
    clock = FakeClock()
    records = DrainRecords(clock)
    for number, last_pick_s in enumerate(last_picks_s):
        drained(records, clock, number, last_pick_s)
    assert records.recommended_min_wait_s == recommended_s


def test_a_server_that_crashes_again_and_again_does_not_outvote_those_that_were_rolled() -> None:
    clock = FakeClock()
    records = DrainRecords(clock)
    for number in range(3):
        drained(records, clock, number, 3.0)
    for restarts in range(MAX_RECORDS - 3):
        key = ("looping", f"uid/{restarts}")
        records.end(records.begin(key, name="", seen_by="kubernetes", reason=None, in_flight_requests=0))
    assert records.recommended_min_wait_s == 7.0
