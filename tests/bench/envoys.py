"""The three Envoys of a measurement, as plain configurations: small, fixed, and independent of what `epp envoy-config` prints.

The same requests must cost Envoy the same from version to version of this project, or the ratio would say nothing: a
front that does more work of its own would make the endpoint picker look cheaper.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FRONT, UPSTREAM, PATIENT_UPSTREAM = "front", "upstream", "patient upstream"
_TYPES = "type.googleapis.com/envoy.extensions"
_LOOPBACK = "127.0.0.1"
_FRONT_BUFFER_BYTES = 32_768
_UPSTREAM_BUFFER_BYTES = 1 << 21
_DAY = "86400s"
_REQUESTS = 40_000
_BREAKERS = {
    "thresholds": [{"max_connections": _REQUESTS, "max_pending_requests": _REQUESTS, "max_requests": _REQUESTS}],
}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
}
"""What the upstream answers to every request."""


def upstream(metrics_page: Path) -> str:
    """Model servers on every address of this machine and two free ports: `ANSWER`, and a page at /metrics.

    UPSTREAM answers as soon as it sees the headers, and closes the connection when the body comes later. So it does after
    an endpoint picker, since Envoy then sends them apart; that is part of what Envoy costs in the comparison, and must
    stay, as the goals were set with it. PATIENT_UPSTREAM waits for the body: large ones could not be sent otherwise.
    """
    page = {
        "match": {"path": "/metrics"},
        "direct_response": {"status": 200, "body": {"filename": str(metrics_page)}},
        **_content_type("text/plain; version=0.0.4"),
    }
    answer = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": json.dumps(ANSWER)}},
        **_content_type("application/json"),
    }
    routes = {"max_direct_response_body_size_bytes": 1 << 20, **_route_config([page, answer])}
    wait = _filter("buffer", {"@type": f"{_TYPES}.filters.http.buffer.v3.Buffer", "max_request_bytes": _UPSTREAM_BUFFER_BYTES})
    # 0.0.0.0, as each endpoint has an address of its own, 127.0.1.N.
    listeners = [
        _listener(name, "0.0.0.0", routes, filters, _UPSTREAM_BUFFER_BYTES)
        for name, filters in ((UPSTREAM, []), (PATIENT_UPSTREAM, [wait]))
    ]
    return _bootstrap(listeners, [])


def front(epp_port: int) -> str:
    """Asks the endpoint picker in every phase, bodies FULL_DUPLEX_STREAMED both ways, and goes where it says."""
    ext_proc = {
        "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "epp"}, "timeout": "10s"},
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "1000s",
    }
    picked = {
        **_cluster("endpoints"),
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
    }
    http2 = {"initial_stream_window_size": 65_536, "initial_connection_window_size": 1 << 20}
    epp = {
        **_cluster("epp", [(_LOOPBACK, epp_port)]),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": http2},
            }
        },
    }
    return _bootstrap([_front_listener([_filter("ext_proc", ext_proc)])], [picked, epp])


def plain(endpoints: Sequence[tuple[str, int]]) -> str:
    """The same front without an endpoint picker: takes the endpoints in turn."""
    return _bootstrap([_front_listener([])], [_cluster("endpoints", endpoints)])


def _front_listener(filters: list[dict[str, Any]]) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "endpoints", "timeout": _DAY, "idle_timeout": _DAY}}
    return _listener(FRONT, _LOOPBACK, _route_config([route]), filters, _FRONT_BUFFER_BYTES)


def _cluster(name: str, endpoints: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    cluster: dict[str, Any] = {"name": name, "type": "STATIC", "connect_timeout": "5s", "circuit_breakers": _BREAKERS}
    if endpoints:
        members = [{"endpoint": {"address": _address(host, port)}} for host, port in endpoints]
        cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": members}]}
    return cluster


def _listener(name: str, host: str, routes: Any, filters: list[Any], buffer_bytes: int) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": routes,
        "http_filters": [*filters, _filter("router", {"@type": f"{_TYPES}.filters.http.router.v3.Router"})],
    }
    return {
        "name": name,
        "address": _address(host, 0),
        "per_connection_buffer_limit_bytes": buffer_bytes,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _bootstrap(listeners: list[Any], clusters: list[Any]) -> str:
    config = {
        "admin": {"address": _address(_LOOPBACK, 0)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    return json.dumps(config)


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _filter(name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"envoy.filters.http.{name}", "typed_config": config}


def _route_config(routes: list[Any]) -> dict[str, Any]:
    return {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]}


def _content_type(value: str) -> dict[str, Any]:
    header = {"key": "content-type", "value": value}
    return {"response_headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]}
