"""The trickle to endpoints whose answers failed."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.filters.endpoint_health import PROBE_BODY_BYTES, EndpointHealthFilter
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from tests.fakes.pool import pool_of

REQUEST = InferenceRequest(request_id="r")
FILTER = EndpointHealthFilter()


def at(now_s: float, picks: int = 0) -> Moment:
    return Moment(now_s=now_s, picks_total=picks)


def test_a_healthy_pool_passes_as_it_is() -> None:
    ready = pool_of(3).ready
    assert FILTER.keep(REQUEST, ready, at(0.0)) is ready


def kept_and_probe(
    candidates: Sequence[Endpoint], moment: Moment, body_bytes: int = 0
) -> tuple[list[Endpoint], Endpoint | None]:
    request = InferenceRequest(request_id="r", body_bytes=body_bytes)
    return list(FILTER.keep(request, candidates, moment)), moment.probe


def test_a_demoted_endpoint_is_left_out_until_its_probe_is_due_by_time() -> None:
    bad, good = pool_of(2).ready
    bad.health.demote("answered 500", 100.0, 0)
    assert kept_and_probe((bad, good), at(109.9)) == ([good], None)
    assert kept_and_probe((bad, good), at(110.0)) == ([good], bad)
    bad.health.probed(110.0, 0)
    assert kept_and_probe((bad, good), at(110.0)) == ([good], None)


def test_with_much_traffic_the_probe_comes_sooner_but_not_at_once() -> None:
    bad, good = pool_of(2).ready
    bad.health.demote("answered 500", 100.0, 0)
    assert kept_and_probe((bad, good), at(100.9, picks=1000)) == ([good], None)
    assert kept_and_probe((bad, good), at(101.0, picks=39)) == ([good], None)
    assert kept_and_probe((bad, good), at(101.0, picks=40)) == ([good], bad)


def test_a_request_with_a_large_body_is_a_probe_only_where_none_other_came_for_long() -> None:
    """Field report 88: what Envoy does not keep whole it cannot send again."""
    bad, good = pool_of(2).ready
    bad.health.demote("answered 500", 100.0, 0)
    large = PROBE_BODY_BYTES + 1
    assert kept_and_probe((bad, good), at(110.0), PROBE_BODY_BYTES) == ([good], bad)
    assert kept_and_probe((bad, good), at(129.9), large) == ([good], None)
    assert kept_and_probe((bad, good), at(130.0), large) == ([good], bad)


def test_when_all_are_demoted_all_stay() -> None:
    ready = pool_of(2).ready
    for endpoint in ready:
        endpoint.health.demote("answered 500", 100.0, 0)
    assert FILTER.keep(REQUEST, ready, at(100.0)) is ready
