"""The port that clients talk to: connection manager, routes, filters."""

from betterproto2 import Message
from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as stream_log
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import v3 as early

from epp.eds.names import MODEL_SERVERS
from epp.envoy.clusters import DESTINATION_HEADER, FALLBACK_CLUSTER, PICKED_CLUSTER, http2_windows
from epp.envoy.ext_proc_filter import METADATA_NAMESPACE, ext_proc_filter
from epp.envoy.model_servers import retries
from epp.envoy.options import EnvoyOptions
from epp.envoy.typed import address, seconds, typed

PICKER_ONLY_HEADERS = (
    DESTINATION_HEADER,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
)
"""Headers that name an address to connect to. A client that could set one could make Envoy, or a model server behind
it, call any address; so they are taken off every request before the first filter and the first route sees it."""

_IDLE_S = 86_400.0
"""A request may be silent this long: queued, or in a long prefill."""
_CLIENT_STREAMS = 100
_LOG_FORMAT = (
    "[%START_TIME%] %REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% "
    f"%DURATION%ms up=%UPSTREAM_HOST% picked=%DYNAMIC_METADATA({METADATA_NAMESPACE}:{DESTINATION_HEADER})% "
    "in=%BYTES_RECEIVED% out=%BYTES_SENT% id=%REQ(X-REQUEST-ID)% %RESPONSE_CODE_DETAILS%\n"
)


def client_listener(options: EnvoyOptions) -> listener.Listener:
    """The listener for clients."""
    manager = listener.Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=typed(_connection_manager(options))
    )
    return listener.Listener(
        name="clients",
        address=address(options.listen),
        per_connection_buffer_limit_bytes=options.buffer_limit,
        filter_chains=[listener.FilterChain(filters=[manager])],
    )


def _connection_manager(options: EnvoyOptions) -> hcm.HttpConnectionManager:
    """HTTP/1.1 and HTTP/2 on one port, trailers passed on, websockets allowed, no timeout that would cut a stream.

    Paths are normalised but not unescaped: model names such as `org%2Fname` are part of some paths.
    """
    http2 = http2_windows()
    http2.max_concurrent_streams = _CLIENT_STREAMS
    return hcm.HttpConnectionManager(
        stat_prefix="clients",
        route_config=_routes(options),
        http_filters=[ext_proc_filter(options), _router()],
        http_protocol_options=core.Http1ProtocolOptions(enable_trailers=True),
        http2_protocol_options=http2,
        stream_idle_timeout=seconds(_IDLE_S),
        use_remote_address=True,
        normalize_path=True,
        server_header_transformation=hcm.HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        upgrade_configs=[hcm.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        early_header_mutation_extensions=[_strip_picker_only_headers()],
        access_log=[_access_log()] if options.access_log else [],
    )


def _routes(options: EnvoyOptions) -> route.RouteConfiguration:
    """Where a request goes, looked up again after the pick (`clear_route_cache`).

    With ORIGINAL_DST there are no retries: the header names one address, so each retry would go to the endpoint that has just
    failed.
    """
    if not options.original_dst:
        routes = [_route(MODEL_SERVERS, route.RouteMatch(prefix="/"), retries(options))]
    elif options.fallback:
        picked = route.HeaderMatcher(name=DESTINATION_HEADER, present_match=True)
        routes = [
            _route(PICKED_CLUSTER, route.RouteMatch(prefix="/", headers=[picked])),
            _route(FALLBACK_CLUSTER, route.RouteMatch(prefix="/")),
        ]
    else:
        routes = [_route(PICKED_CLUSTER, route.RouteMatch(prefix="/"))]
    everything = route.VirtualHost(name="all", domains=["*"], routes=routes)
    return route.RouteConfiguration(name="inference", virtual_hosts=[everything])


def _route(cluster: str, match: route.RouteMatch, retry_policy: route.RetryPolicy | None = None) -> route.Route:
    return route.Route(
        match=match,
        route=route.RouteAction(cluster=cluster, timeout=seconds(0), idle_timeout=seconds(_IDLE_S), retry_policy=retry_policy),
    )


def _strip_picker_only_headers() -> core.TypedExtensionConfig:
    """Take the headers off before routing; `request_headers_to_remove` of a route would act after the pick."""
    removals = [mutation_rules.HeaderMutation(remove=name) for name in PICKER_ONLY_HEADERS]
    return _extension("envoy.http.early_header_mutation.header_mutation", early.HeaderMutation(mutations=removals))


def _router() -> hcm.HttpFilter:
    return hcm.HttpFilter(name="envoy.filters.http.router", typed_config=typed(router.Router(suppress_envoy_headers=True)))


def _access_log() -> accesslog.AccessLog:
    line = core.SubstitutionFormatString(text_format_source=core.DataSource(inline_string=_LOG_FORMAT))
    return accesslog.AccessLog(
        name="envoy.access_loggers.stdout", typed_config=typed(stream_log.StdoutAccessLog(log_format=line))
    )


def _extension(name: str, message: Message) -> core.TypedExtensionConfig:
    return core.TypedExtensionConfig(name=name, typed_config=typed(message))
