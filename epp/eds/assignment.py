"""The pool as Envoy's load balancing sees it: a `ClusterLoadAssignment`."""

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.wrappers_pb2 import UInt32Value

from epp.pb.envoy.config.core.v3.address_pb2 import Address, SocketAddress
from epp.pb.envoy.config.core.v3.health_check_pb2 import DEGRADED, DRAINING, HEALTHY, UNHEALTHY, HealthStatus
from epp.pb.envoy.config.endpoint.v3.endpoint_components_pb2 import Endpoint as EnvoyEndpoint
from epp.pb.envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint, LocalityLbEndpoints
from epp.pb.envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from epp.pool.endpoint import Endpoint, EndpointAddress, EndpointState

WEIGHT_OF_ONE = 100
"""Envoy's weights are whole numbers: a relative capacity of 1 becomes this, one of 0.5 half of it."""
LARGEST_WEIGHT = 100_000
"""Envoy refuses a list whose weights add up to more than 32 bits; so 40,000 endpoints fit in any case."""
OVERPROVISIONING_PERCENT = 1_000_000
"""One healthy endpoint among 10,000 is enough: nothing goes to a degraded one before the last healthy one is gone."""


class Member(NamedTuple):
    """What Envoy is told of one endpoint."""

    address: EndpointAddress
    state: EndpointState
    weight: float
    demoted: bool


def member_of(endpoint: Endpoint) -> Member:
    """The endpoint as it is now."""
    return Member(endpoint.spec.address, endpoint.state, endpoint.spec.weight, endpoint.health.demoted_because is not None)


class AssignmentWriter:
    """Writes assignments; remembers what it made of each member, since from one list to the next few of them change."""

    def __init__(self) -> None:
        self._made: dict[Member, LbEndpoint] = {}

    def write(self, cluster_name: str, members: Sequence[Member]) -> ClusterLoadAssignment:
        """The assignment of a cluster with these members, in their order.

        Draining and unready ones are in it, so that Envoy knows them when they are named; its own choice passes them over.
        """
        before, self._made = self._made, {}
        for member in members:
            self._made[member] = before.get(member) or _lb_endpoint(member)
        return ClusterLoadAssignment(
            cluster_name=cluster_name,
            endpoints=[LocalityLbEndpoints(lb_endpoints=self._made.values())] if members else [],
            policy=ClusterLoadAssignment.Policy(overprovisioning_factor=UInt32Value(value=OVERPROVISIONING_PERCENT)),
        )


def _lb_endpoint(member: Member) -> LbEndpoint:
    host, _, port = member.address.rpartition(":")
    socket_address = SocketAddress(address=host.strip("[]"), port_value=int(port))
    return LbEndpoint(
        endpoint=EnvoyEndpoint(address=Address(socket_address=socket_address)),
        health_status=_health(member),
        load_balancing_weight=UInt32Value(value=max(1, min(LARGEST_WEIGHT, round(member.weight * WEIGHT_OF_ONE)))),
    )


def _health(member: Member) -> HealthStatus.ValueType:
    match member.state:
        case EndpointState.READY:
            return DEGRADED if member.demoted else HEALTHY
        case EndpointState.DRAINING:
            return DRAINING
        case EndpointState.UNREADY:
            return UNHEALTHY
