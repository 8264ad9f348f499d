"""epp.eds.assignment: what Envoy's load balancing is told of each endpoint."""

from collections.abc import Sequence

import pytest
from envoy_data_plane.envoy.config.core.v3 import HealthStatus
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment

from epp.eds.assignment import AssignmentWriter, Member, member_of
from epp.pool.endpoint import EndpointState, endpoint_address
from tests.fakes.pool import pool_of, spec

READY = EndpointState.READY


def written(*members: Member) -> ClusterLoadAssignment:
    """An assignment as an independent reader sees it."""
    return ClusterLoadAssignment.parse(AssignmentWriter().write("c", members).SerializeToString())


def member(number: int = 1, state: EndpointState = READY, weight: float = 1.0, *, demoted: bool = False) -> Member:
    return Member(endpoint_address(f"10.0.0.{number}", 8000), state, weight, demoted)


def weights(members: Sequence[Member]) -> list[int | None]:
    return [each.load_balancing_weight for each in written(*members).endpoints[0].lb_endpoints]


@pytest.mark.parametrize(
    ("state", "demoted", "health"),
    [
        (EndpointState.READY, False, HealthStatus.HEALTHY),
        (EndpointState.READY, True, HealthStatus.DEGRADED),
        (EndpointState.DRAINING, False, HealthStatus.DRAINING),
        (EndpointState.DRAINING, True, HealthStatus.DRAINING),
        (EndpointState.UNREADY, False, HealthStatus.UNHEALTHY),
    ],
)
def test_only_what_may_be_picked_is_healthy(state: EndpointState, demoted: bool, health: HealthStatus) -> None:
    (told,) = written(member(state=state, demoted=demoted)).endpoints[0].lb_endpoints

    assert told.health_status is health


@pytest.mark.parametrize(("ip", "told"), [("10.0.0.1", "10.0.0.1"), ("fd00::7", "fd00::7")])
def test_an_address_goes_out_without_brackets(ip: str, told: str) -> None:
    assignment = written(Member(endpoint_address(ip, 8000), READY, 1.0, False))
    endpoint = assignment.endpoints[0].lb_endpoints[0].endpoint

    assert endpoint is not None
    assert endpoint.address is not None
    assert endpoint.address.socket_address is not None
    assert endpoint.address.socket_address.address == told
    assert endpoint.address.socket_address.port_value == 8000


def test_weights_keep_their_proportion_and_stay_within_what_envoy_takes() -> None:
    assert weights([member(1, weight=1.0), member(2, weight=0.5), member(3, weight=2.25)]) == [100, 50, 225]
    assert weights([member(1, weight=0.0001), member(2, weight=1e9)]) == [1, 100_000]


def test_one_healthy_endpoint_keeps_everything_off_the_degraded_ones() -> None:
    """Envoy gives degraded endpoints what the healthy ones lack: 100 % at most, times this factor over their share."""
    policy = written(member()).policy

    assert policy is not None
    assert policy.overprovisioning_factor == 100 * 10_000


def test_an_empty_pool_is_a_cluster_without_endpoints() -> None:
    assignment = written()

    assert assignment.cluster_name == "c"
    assert assignment.endpoints == []


def test_a_writer_that_goes_on_writes_what_a_new_one_would() -> None:
    writer = AssignmentWriter()
    for members in ([member(1), member(2)], [member(2, demoted=True), member(3)], [member(3), member(1)]):
        assert writer.write("c", members) == AssignmentWriter().write("c", members)


def test_a_member_is_what_the_pool_says() -> None:
    pool = pool_of([spec(1, weight=2.0), spec(2, draining=True)])
    ready, draining = pool.endpoints
    ready.health.demote("answered 500", 0.0)

    assert member_of(ready) == (ready.address, EndpointState.READY, 2.0, True)
    assert member_of(draining) == (draining.address, EndpointState.DRAINING, 1.0, False)
