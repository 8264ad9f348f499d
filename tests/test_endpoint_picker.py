"""The decision as a whole."""

import random
from collections import Counter

import pytest

from epp.config.document_reader import read_document
from epp.endpoint_picker import RECENT_PICKS, EndpointPicker
from epp.errors import NoEndpointError, SubsetEmptyError
from epp.pool.endpoint import endpoint_address
from epp.pool.health import PROBE_EVERY_PICKS
from epp.pool.state import PoolState
from epp.scheduling.catalog import Workshop, build_profile, default_profile
from epp.scheduling.request import InferenceRequest
from tests.fakes.clock import FakeClock
from tests.fakes.observer import CountingObserver, SilentLog
from tests.fakes.pool import pool_of, spec, tell


def picker_of(pool: PoolState, clock: FakeClock, *, last_resort: bool = False) -> EndpointPicker:
    profile = default_profile(Workshop(rng=random.Random(3), staleness_s=2.0))
    return EndpointPicker(pool, profile, clock=clock, observer=CountingObserver(), log=SilentLog(), last_resort=last_resort)


def request(subset: set[str] | None = None, named: int = 1) -> InferenceRequest:
    inside = None if subset is None else frozenset(subset)
    return InferenceRequest(request_id="r", model="m", subset=inside, endpoints_named=named)


def test_64_picks_at_once_spread_evenly_over_8_idle_endpoints() -> None:
    """Field report 49: choosing and counting are one step, so frozen metrics make no herd."""
    clock = FakeClock()
    pool = pool_of(8, clock)
    for endpoint in pool.ready:
        tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0, kv_cache_usage_ratio=0.3)
    picker = picker_of(pool, clock)
    picks = Counter(picker.pick(request()).destination for _ in range(64))
    assert len(picks) == 8
    assert all(6 <= count <= 10 for count in picks.values())


def test_each_port_of_a_host_is_an_endpoint_with_its_own_load() -> None:
    """Field report 7, as far as it needs no cluster."""
    clock = FakeClock()
    ranks = [spec(1, address=endpoint_address("10.0.0.1", port), name=f"rank-{port}") for port in (8000, 8001)]
    pool = pool_of(ranks, clock)
    tell(pool.ready[0], clock, waiting_requests=30.0, running_requests=8.0)
    tell(pool.ready[1], clock, waiting_requests=0.0, running_requests=8.0)
    assert picker_of(pool, clock).pick(request()).destination == "10.0.0.1:8001"


def test_a_weight_of_two_gets_twice_the_requests() -> None:
    """Field report 61, as far as it needs no cluster."""
    clock = FakeClock()
    picker = picker_of(pool_of([spec(1, weight=2.0), spec(2)], clock), clock)
    picks = Counter(picker.pick(request()).destination for _ in range(300))
    assert 195 <= picks["10.0.0.1:8000"] <= 205


def test_an_eighth_endpoint_is_neither_flooded_nor_starved() -> None:
    """Field report 57, as far as it needs no cluster."""
    clock = FakeClock()
    pool = pool_of(7, clock)
    picker = picker_of(pool, clock)
    for _ in range(56):
        picker.pick(request())
    for endpoint in pool.ready:
        tell(endpoint, clock, waiting_requests=0.0, running_requests=8.0)
    pool.sync([spec(n) for n in range(1, 9)])
    tell(pool.ready[7], clock, waiting_requests=0.0, running_requests=0.0)
    picks = Counter(picker.pick(request()).destination for _ in range(40))
    assert 3 <= picks["10.0.0.8:8000"] <= 12


def test_a_frozen_idle_endpoint_gets_at_most_its_share() -> None:
    """Field report 33."""
    clock = FakeClock()
    pool = pool_of(3, clock)
    picker = picker_of(pool, clock)
    frozen, b, c = pool.ready
    tell(frozen, clock, waiting_requests=0.0, running_requests=0.0)
    clock.advance(3.0)
    tell(b, clock, waiting_requests=0.0, running_requests=3.0)
    tell(c, clock, waiting_requests=0.0, running_requests=3.0)
    picks = Counter(picker.pick(request()).destination for _ in range(300))
    assert picks["10.0.0.1:8000"] <= 100


def test_an_endpoint_that_fails_fast_gets_a_trickle_and_comes_back() -> None:
    """Field report 40: three slow but good endpoints, one that answers 503 in 2 ms with empty metrics."""
    clock = FakeClock()
    pool = pool_of(4, clock)
    picker = picker_of(pool, clock)
    bad = pool.ready[0].address
    running: list[tuple[float, object]] = []
    well = False

    def drive(seconds: float) -> Counter[str]:
        picks: Counter[str] = Counter()
        end = clock.now_s + seconds
        while clock.now_s < end:
            for endpoint in pool.ready:
                tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
            while running and running[0][0] <= clock.now_s:
                _, done = running.pop(0)
                done.answered(200)  # type: ignore[attr-defined]
                done.release()  # type: ignore[attr-defined]
            pick = picker.pick(request())
            picks[pick.destination] += 1
            if pick.destination == bad and not well:
                pick.answered(503)
                pick.release()
            else:
                running.append((clock.now_s + 0.3, pick))
            clock.advance(0.05)
        return picks

    drive(5.0)
    while_bad = drive(60.0)
    assert while_bad[bad] / while_bad.total() < 0.05
    well = True
    drive(30.0)
    afterwards = drive(20.0)
    assert afterwards[bad] / afterwards.total() > 0.2


def test_no_endpoint_says_why() -> None:
    clock = FakeClock()
    with pytest.raises(NoEndpointError, match="pool 'p' is empty"):
        picker_of(pool_of(0, clock), clock).pick(request())
    with pytest.raises(NoEndpointError, match="none of the 1 endpoints of pool 'p' is ready"):
        picker_of(pool_of([spec(1, draining=True)], clock), clock).pick(request())
    with pytest.raises(NoEndpointError, match="not listed yet"):
        picker_of(PoolState(clock, name="p", source="file"), clock).pick(request())


def test_the_last_resort_is_a_draining_endpoint_if_configured() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, draining=True), spec(2, not_ready_reason="broken")], clock)
    assert picker_of(pool, clock, last_resort=True).pick(request()).destination == "10.0.0.1:8000"


def test_a_subset_is_honoured_by_ip_and_by_ip_and_port() -> None:
    """Field report 12."""
    clock = FakeClock()
    picker = picker_of(pool_of(4, clock), clock)
    picks = {picker.pick(request({"10.0.0.2:8000", "10.0.0.3"})).destination for _ in range(100)}
    assert picks == {"10.0.0.2:8000", "10.0.0.3:8000"}


@pytest.mark.parametrize("subset", [set(), {"10.9.9.9:8000"}, {"10.0.0.1:9999"}])
def test_an_empty_or_foreign_subset_is_refused(subset: set[str]) -> None:
    """Field report 12: present but no overlap is 503, never a pick outside it."""
    clock = FakeClock()
    with pytest.raises(SubsetEmptyError):
        picker_of(pool_of(4, clock), clock).pick(request(subset))


def test_a_pick_is_released_once_however_often_it_is_asked() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pick = picker_of(pool, clock).pick(request())
    pick.release()
    pick.release()
    assert pool.in_flight_requests == 0
    assert pool.ready[0].unanswered_requests == 0


def test_a_cut_request_on_an_endpoint_that_drains_is_counted_once() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pick = picker_of(pool, clock).pick(request())
    pool.sync([spec(1, draining=True)])
    pick.release(cut=True)
    pick.release(cut=True)
    (record,) = pool.drains.newest()
    assert record.cut_requests == 1


def test_the_served_endpoint_is_believed_over_the_pick() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1), spec(2)], clock)
    pick = picker_of(pool, clock).pick(request())
    picked = pool.find(pick.addresses[0])
    other = next(e for e in pool.ready if e is not picked)
    assert picked is not None
    assert pick.served_by(other.address)
    assert not pick.served_by(other.address)
    assert (picked.in_flight_requests, other.in_flight_requests) == (0, 1)
    pick.answered(200)
    pick.release()
    assert pool.in_flight_requests == 0
    assert [e.unanswered_requests for e in pool.ready] == [0, 0]


def test_a_served_endpoint_that_is_not_in_the_pool_leaves_the_count_where_it_is() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pick = picker_of(pool, clock).pick(request())
    assert pick.served_by("10.9.9.9:1")
    assert pool.in_flight_requests == 1
    pick.release()
    assert pool.in_flight_requests == 0


def test_recent_picks_tell_scores_and_what_was_filtered_newest_first() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    pool.ready[2].health.demote("answered 500", clock.now_s, 0)
    pool.count_pick(pool.ready[0])
    picker = picker_of(pool, clock)
    picker.pick(InferenceRequest(request_id="first", model="m"))
    with pytest.raises(SubsetEmptyError):
        picker.pick(InferenceRequest(request_id="second", subset=frozenset()))
    second, first = picker.recent(10)
    assert second["request_id"] == "second"
    assert second["endpoints"] == []
    assert second["error"]["code"] == "subset_empty"
    assert first == {
        "request_id": "first",
        "at": clock.wall_s(),
        "model": "m",
        "target_model": None,
        "priority": 0,
        "endpoints": ["10.0.0.2:8000"],
        "probe": None,
        "duration_s": 0.0,
        "candidates": [
            {"endpoint": "10.0.0.1:8000", "name": "e1", "scores": {"least-load-scorer": 0.0}, "total": 0.0},
            {"endpoint": "10.0.0.2:8000", "name": "e2", "scores": {"least-load-scorer": 1.0}, "total": 1.0},
        ],
        "filtered": [{"endpoint": "10.0.0.3:8000", "by": "endpoint-health-filter"}],
        "error": None,
    }
    assert picker.recent(1) == [second]


def test_recent_picks_tell_the_clients_model_and_the_one_it_got_instead() -> None:
    clock = FakeClock()
    picker = picker_of(pool_of(1, clock), clock)
    picker.pick(InferenceRequest(request_id="r", model="new", client_model="old", priority=7))
    (record,) = picker.recent(1)
    assert (record["model"], record["target_model"], record["priority"]) == ("old", "new", 7)


def test_recent_picks_are_bounded() -> None:
    clock = FakeClock()
    picker = picker_of(pool_of(2, clock), clock)
    for _ in range(RECENT_PICKS + 50):
        picker.pick(request()).release()
    assert len(picker.recent(10_000)) == RECENT_PICKS


def test_as_many_endpoints_are_named_as_the_proxy_can_try_and_only_the_first_is_counted() -> None:
    """Field report 87: best first, no repeats, no draining one, none that failed lately, none outside the subset."""
    clock = FakeClock()
    pool = pool_of([*(spec(n) for n in range(1, 7)), spec(7, draining=True)], clock)
    for number, endpoint in enumerate(pool.ready):
        tell(endpoint, clock, waiting_requests=0.0, running_requests=float(number))
    pool.ready[1].health.demote("answered 500", clock.now_s, 0)
    picker = picker_of(pool, clock)
    inside = {f"10.0.0.{n}" for n in (1, 2, 3, 4, 6, 7)}
    pick = picker.pick(request(inside, named=3))
    assert pick.destination == "10.0.0.1:8000,10.0.0.3:8000,10.0.0.4:8000"
    assert pick.choice == "10.0.0.1:8000"
    assert [e.in_flight_requests for e in pool.ready] == [1, 0, 0, 0, 0, 0]
    everyone = picker.pick(request(inside, named=5)).addresses
    assert sorted(everyone) == ["10.0.0.1:8000", "10.0.0.3:8000", "10.0.0.4:8000", "10.0.0.6:8000"]


def test_the_configured_number_of_endpoints_wins_over_what_the_proxy_says() -> None:
    clock = FakeClock()
    pool = pool_of(5, clock)
    profile = build_profile(
        read_document(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: least-load-scorer}, "
            "{type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}]",
            "c.yaml",
        ),
        Workshop(rng=random.Random(3), staleness_s=2.0),
    )
    picker = EndpointPicker(pool, profile, clock=clock, observer=CountingObserver(), log=SilentLog())
    assert [len(picker.pick(request(named=named)).addresses) for named in (1, 3)] == [2, 2]


def test_a_probe_goes_first_and_well_ones_stand_behind_it_where_the_proxy_can_try_them() -> None:
    """Field report 40: a probe costs no request where the list is walked."""
    clock = FakeClock()
    pool = pool_of(3, clock)
    bad = pool.ready[1]
    bad.health.demote("answered 500", clock.now_s, 0)
    clock.advance(10.0)
    picker = picker_of(pool, clock)
    first = picker.pick(request(named=3))
    second = picker.pick(request(named=3))
    assert first.choice == bad.address
    assert sorted(first.addresses) == sorted(e.address for e in pool.ready)
    assert bad.address not in second.addresses
    assert bad.in_flight_requests == 1
    latest, probing = picker.recent(2)
    assert (probing["probe"], probing["endpoints"], probing["filtered"]) == (bad.address, list(first.addresses), [])
    assert [c["endpoint"] for c in probing["candidates"]] == ["10.0.0.1:8000", "10.0.0.3:8000"]
    assert latest["probe"] is None
    assert latest["filtered"] == [{"endpoint": bad.address, "by": "endpoint-health-filter"}]


def test_a_probe_goes_alone_where_the_proxy_takes_one_address() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    pool.ready[1].health.demote("answered 500", clock.now_s, 0)
    clock.advance(10.0)
    assert picker_of(pool, clock).pick(request()).addresses == ("10.0.0.2:8000",)


def test_a_retry_moves_the_count_and_tells_of_those_that_were_passed() -> None:
    """Field reports 13 and 87: the request works on the one that the retry reached; the refused one gets nothing new."""
    clock = FakeClock()
    pool = pool_of(3, clock)
    picker = picker_of(pool, clock)
    pick = picker.pick(request(named=3))
    first, second, third = (e for address in pick.addresses for e in pool.ready if e.address == address)
    assert pick.reached(third.address, 3)
    pick.answered(200)
    assert [e.in_flight_requests for e in (first, second, third)] == [0, 0, 1]
    assert [e.unanswered_requests for e in (first, second, third)] == [0, 0, 0]
    assert [e.health.demoted_because is None for e in (first, second, third)] == [False, False, True]
    assert {picker.pick(request()).choice for _ in range(20)} == {third.address}
    clock.advance(0.05)
    for endpoint in (first, second):
        tell(endpoint, clock)  # a scrape that began after it
    assert len({picker.pick(request()).choice for _ in range(80)}) == 3
    pick.release()


def test_each_try_blames_one_and_those_that_were_not_tried_are_not_to_blame() -> None:
    """An address that Envoy does not know yet is passed over without a try, and Envoy's own choice may come third."""
    clock = FakeClock()
    pool = pool_of(4, clock)
    pick = picker_of(pool, clock).pick(request(named=3))
    (unnamed,) = (e for e in pool.ready if e.address not in pick.addresses)
    assert pick.reached(unnamed.address, 2)
    assert [e.address for e in pool.ready if e.health.demoted_because is not None] == [pick.addresses[0]]
    pick.release()


def test_busy_answers_that_were_repeated_elsewhere_are_no_failures() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    picker = picker_of(pool, clock)
    full, other = pool.ready
    running = [picker.pick(request(named=2)) for _ in range(8)]
    for pick in running:
        pick.answered(200)
    passes = 0
    while passes < 10:
        pick = picker.pick(request(named=2))
        passes += pick.choice == full.address
        pick.reached(other.address, 2)
        pick.answered(200)
        pick.release()
        clock.advance(0.05)
        for endpoint in (full, other):
            tell(endpoint, clock, waiting_requests=0.0, running_requests=4.0)
    assert full.health.demoted_because is None
    for pick in running:
        pick.release()


def test_another_address_without_a_second_try_blames_nobody() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    pick = picker_of(pool, clock).pick(request(named=2))
    assert pick.reached(pick.addresses[1], 1)
    assert all(e.health.demoted_because is None for e in pool.ready)
    assert pool.in_flight_requests == 1


def test_an_address_that_the_pool_does_not_know_is_something_between() -> None:
    """A mesh or a tunnel: Envoy's own upstream is no endpoint then."""
    clock = FakeClock()
    pool = pool_of(1, clock)
    pick = picker_of(pool, clock).pick(request())
    assert not pick.reached("10.9.9.9:15008", 2)
    assert not pick.reached(pick.choice, 2)
    assert pool.ready[0].health.demoted_because is None


def test_an_endpoint_that_refused_moments_ago_is_not_chosen_for_a_large_body() -> None:
    """Field report 88: 3 MB do not fit Envoy's buffer for a second try, so the first must be good."""
    clock = FakeClock()
    pool = pool_of(3, clock)
    picker = picker_of(pool, clock)
    refused = picker.pick(request(named=3))
    refused.lost_connection("refused a connection")
    refused.release()
    for _ in range(100):
        clock.advance(0.2)
        large = InferenceRequest(request_id="r", endpoints_named=3, body_bytes=3_000_000)
        pick = picker.pick(large)
        assert refused.choice not in pick.addresses
        pick.answered(200)
        pick.release()


def test_a_draining_server_that_fails_fast_gets_probes_only_though_its_old_requests_end_well() -> None:
    """A draining vLLM: what runs there ends with 200, what is new gets 500 in 5 ms, and its load falls."""
    clock = FakeClock()
    pool = pool_of(4, clock)
    picker = picker_of(pool, clock)
    old = [picker.pick(request()) for _ in range(80)]
    draining = pool.ready[0]
    its_old = [pick for pick in old if pick.choice == draining.address]
    lost = 0
    for step in range(400):
        clock.advance(0.05)
        for endpoint in pool.ready:
            running = float(len(its_old)) if endpoint is draining else 20.0
            tell(endpoint, clock, waiting_requests=0.0, running_requests=running)
        if step % 20 == 0 and its_old:
            done = its_old.pop()
            done.answered(200)
            done.release()
        pick = picker.pick(request())
        failed = pick.choice == draining.address
        pick.answered(500 if failed else 200)
        pick.release()
        lost += failed
    assert len(its_old) == 0
    assert 3 <= lost <= 3 + 400 / PROBE_EVERY_PICKS


def test_cut_answers_take_an_endpoint_out_until_the_next_scrape() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    dying, other = pool.ready
    dying.scrape_interval_s = other.scrape_interval_s = 0.05
    picker = picker_of(pool, clock)
    picks = [pick for pick in (picker.pick(request()) for _ in range(6)) if pick.choice == dying.address]
    for pick in picks:
        pick.answered(200)
    for pick in picks:
        pick.cut()
    assert dying.in_flight_requests == 0
    assert {picker.pick(request()).choice for _ in range(10)} == {other.address}
    clock.advance(0.05)
    tell(dying, clock)
    assert picker.pick(request()).choice == dying.address
