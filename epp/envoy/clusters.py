"""Where Envoy sends things: the endpoint picker, the picked endpoint, and the fallback."""

from collections.abc import Sequence

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstreams
from envoy_data_plane.envoy.type import v3 as percent
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from epp.envoy.ext_proc_filter import EPP_CLUSTER
from epp.envoy.options import EnvoyOptions, HostPort, UnixSocket
from epp.envoy.typed import address, seconds, typed

PICKED_CLUSTER = "picked_endpoint"
FALLBACK_CLUSTER = "fallback"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_STREAMS = 40_000
"""Requests at once. Each one holds an ext_proc stream while it lives, and Envoy's default of 1,024 would refuse the rest."""
ENDPOINT_IDLE_S = 4.0
"""uvicorn (vLLM, SGLang, trtllm-serve, LMDeploy) and llama.cpp's server close connections that were idle for 5 s. A request
that crosses that close on its way is lost, or at best repeated, so Envoy closes them first."""
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_STREAM_WINDOW_BYTES = 65_536
_CONNECTION_WINDOW_BYTES = 1 << 20


def picked_cluster(options: EnvoyOptions) -> cluster.Cluster:
    """ORIGINAL_DST: connects to whatever address the endpoint picker wrote into the header.

    A request without the header gets 503 here. Dead endpoints cost `connect_timeout`, so it is short.
    """
    return cluster.Cluster(
        name=PICKED_CLUSTER,
        type=cluster.ClusterDiscoveryType.ORIGINAL_DST,
        lb_policy=cluster.ClusterLbPolicy.CLUSTER_PROVIDED,
        connect_timeout=seconds(options.connect_timeout_s),
        per_connection_buffer_limit_bytes=options.buffer_limit,
        original_dst_lb_config=cluster.ClusterOriginalDstLbConfig(use_http_header=True, http_header_name=DESTINATION_HEADER),
        circuit_breakers=circuit_breakers(),
        upstream_connection_options=tcp_keepalive(),
        typed_extension_protocol_options=endpoint_protocol(options),
    )


def fallback_cluster(options: EnvoyOptions) -> cluster.Cluster:
    """The servers that take turns at the requests that got no pick."""
    return cluster.Cluster(
        name=FALLBACK_CLUSTER,
        type=discovery(options.fallback),
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        connect_timeout=seconds(options.connect_timeout_s),
        per_connection_buffer_limit_bytes=options.buffer_limit,
        load_assignment=assignment(FALLBACK_CLUSTER, options.fallback),
        circuit_breakers=circuit_breakers(),
        upstream_connection_options=tcp_keepalive(),
        typed_extension_protocol_options=endpoint_protocol(options),
    )


def epp_cluster(options: EnvoyOptions) -> cluster.Cluster:
    """The endpoint picker's ext_proc port.

    The health check finds a draining or hanging replica within about a second, outlier detection a dead one at the
    first refused or broken connection. When no replica is left, a fail-closed filter tries all of them (one that
    drains still answers); a fail-open filter must fail before it has sent the first byte of the body, or the request
    is lost with the stream, so there the panic threshold is zero.
    """
    return cluster.Cluster(
        name=EPP_CLUSTER,
        type=discovery(options.epp),
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        connect_timeout=seconds(options.connect_timeout_s),
        load_assignment=assignment(EPP_CLUSTER, options.epp),
        circuit_breakers=circuit_breakers(),
        upstream_connection_options=tcp_keepalive(),
        common_lb_config=never_panics() if options.fails_open else None,
        health_checks=[epp_health_check()],
        outlier_detection=_epp_outlier_detection(),
        transport_socket=epp_tls(options),
        typed_extension_protocol_options=http2_protocol(),
    )


def never_panics() -> cluster.ClusterCommonLbConfig:
    """A host that is known to be bad gets nothing, even when all are bad."""
    return cluster.ClusterCommonLbConfig(healthy_panic_threshold=percent.Percent(value=0.0))


def epp_health_check() -> core.HealthCheck:
    """The same pace with and without traffic: Envoy's own pause of 60 s before the first request would hide a start."""
    return core.HealthCheck(
        timeout=seconds(1),
        interval=seconds(0.5),
        no_traffic_interval=seconds(0.5),
        unhealthy_threshold=2,
        healthy_threshold=1,
        grpc_health_check=core.HealthCheckGrpcHealthCheck(service_name=EXT_PROC_SERVICE),
    )


def _epp_outlier_detection() -> cluster.OutlierDetection:
    """One failed connection or broken stream rests a replica for a second; answers of the picker never do."""
    return cluster.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=1,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_local_origin_success_rate=0,
        enforcing_success_rate=0,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        interval=seconds(0.5),
        base_ejection_time=seconds(1),
        max_ejection_time=seconds(2),
        max_ejection_percent=100,
    )


def epp_tls(options: EnvoyOptions) -> core.TransportSocket | None:
    """TLS to the endpoint picker; None for plaintext."""
    if not options.speaks_tls:
        return None
    validation = tls.CertificateValidationContext()
    if options.epp_ca is not None:
        validation.trusted_ca = core.DataSource(filename=options.epp_ca)
        if options.epp_server_name is not None:
            validation.match_typed_subject_alt_names = [_san(options.epp_server_name)]
    context = tls.UpstreamTlsContext(
        common_tls_context=tls.CommonTlsContext(validation_context=validation, alpn_protocols=["h2"]),
        sni=options.epp_server_name or "",
    )
    return core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=typed(context))


def _san(name: str) -> tls.SubjectAltNameMatcher:
    return tls.SubjectAltNameMatcher(san_type=tls.SubjectAltNameMatcherSanType.DNS, matcher=matcher.StringMatcher(exact=name))


def discovery(targets: Sequence[HostPort | UnixSocket]) -> cluster.ClusterDiscoveryType:
    """STATIC for addresses; DNS as soon as one of them is a name."""
    if all(isinstance(target, UnixSocket) or target.is_ip for target in targets):
        return cluster.ClusterDiscoveryType.STATIC
    return cluster.ClusterDiscoveryType.STRICT_DNS


def assignment(name: str, targets: Sequence[HostPort | UnixSocket]) -> endpoint.ClusterLoadAssignment:
    """All targets, in one locality."""
    return endpoint.ClusterLoadAssignment(
        cluster_name=name,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                lb_endpoints=[endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address(at))) for at in targets]
            )
        ],
    )


def circuit_breakers() -> cluster.CircuitBreakers:
    """Room for `_STREAMS` of everything."""
    limits = cluster.CircuitBreakersThresholds(
        max_connections=_STREAMS, max_pending_requests=_STREAMS, max_requests=_STREAMS, max_retries=_STREAMS
    )
    return cluster.CircuitBreakers(thresholds=[limits])


def tcp_keepalive() -> cluster.UpstreamConnectionOptions:
    """Finds a vanished host within a minute, as requests may otherwise be silent for hours without any timeout.

    Not HTTP/2 pings: gRPC servers end connections that ping more often than every five minutes.
    """
    return cluster.UpstreamConnectionOptions(
        tcp_keepalive=core.TcpKeepalive(keepalive_time=30, keepalive_interval=10, keepalive_probes=3)
    )


def endpoint_protocol(options: EnvoyOptions) -> dict[str, Any]:
    """HTTP/1.1, or HTTP/2 without TLS; trailers pass in both. Idle connections are closed before the server does it."""
    if options.upstream_http2:
        http = _http2()
    else:
        http1 = core.Http1ProtocolOptions(enable_trailers=True)
        http = upstreams.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=http1)
    idle = core.HttpProtocolOptions(idle_timeout=seconds(ENDPOINT_IDLE_S))
    return {_HTTP_OPTIONS: typed(upstreams.HttpProtocolOptions(common_http_protocol_options=idle, explicit_http_config=http))}


def http2_protocol() -> dict[str, Any]:
    """HTTP/2 to the endpoint picker."""
    return {_HTTP_OPTIONS: typed(upstreams.HttpProtocolOptions(explicit_http_config=_http2()))}


def _http2() -> upstreams.HttpProtocolOptionsExplicitHttpConfig:
    return upstreams.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2_windows())


def http2_windows() -> core.Http2ProtocolOptions:
    """Flow control windows that keep one stream from filling memory and a connection from running dry."""
    return core.Http2ProtocolOptions(
        initial_stream_window_size=_STREAM_WINDOW_BYTES, initial_connection_window_size=_CONNECTION_WINDOW_BYTES
    )
