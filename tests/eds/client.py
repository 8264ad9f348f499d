"""An Envoy's side of the endpoint discovery service, on `envoy-data-plane` messages: a second opinion on the wire format."""

from collections.abc import Sequence

from envoy_data_plane.envoy.config.core.v3 import HealthStatus
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse
from envoy_data_plane.google.rpc import Status

TYPE_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
NAMES = ("model_servers",)


def first_request(names: Sequence[str] = NAMES, type_url: str = TYPE_URL) -> bytes:
    """What a stream begins with."""
    return bytes(DiscoveryRequest(resource_names=list(names), type_url=type_url))


def ack(response: bytes, names: Sequence[str] = NAMES) -> bytes:
    """Accepts a response, and says what is wanted from now on."""
    taken = DiscoveryResponse.parse(response)
    return bytes(
        DiscoveryRequest(
            version_info=taken.version_info, resource_names=list(names), type_url=TYPE_URL, response_nonce=taken.nonce
        )
    )


def nack(response: bytes, why: str, names: Sequence[str] = NAMES) -> bytes:
    """Refuses a response."""
    refused = DiscoveryResponse.parse(response)
    return bytes(
        DiscoveryRequest(
            resource_names=list(names),
            type_url=TYPE_URL,
            response_nonce=refused.nonce,
            error_detail=Status(code=13, message=why),
        )
    )


def assignments(response: bytes) -> dict[str, ClusterLoadAssignment]:
    """What a response holds, by the name of the cluster."""
    found = [ClusterLoadAssignment.parse(each.value) for each in DiscoveryResponse.parse(response).resources]
    return {each.cluster_name: each for each in found}


def endpoints(response: bytes, name: str = NAMES[0]) -> dict[str, HealthStatus]:
    """The health of each endpoint in a response, by `ip:port` with bare IPv6."""
    told = {}
    for locality in assignments(response)[name].endpoints:
        for each in locality.lb_endpoints:
            assert each.endpoint is not None
            assert each.endpoint.address is not None
            at = each.endpoint.address.socket_address
            assert at is not None
            told[f"{at.address}:{at.port_value}"] = each.health_status
    return told
