"""The HTTP filter that asks the endpoint picker."""

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from epp.envoy.options import BodyMode, EnvoyOptions, UnixSocket
from epp.envoy.typed import seconds, typed

EPP_CLUSTER = "endpoint_picker"
ENDPOINTS_NAMED = "x-epp-endpoints-named"
"""gRPC metadata of ext_proc streams: how many endpoints this Envoy can make use of."""
METADATA_NAMESPACE = "envoy.lb"
"""Where Envoy's load balancing keeps its metadata: the subset hint goes out with it, the pick comes back in it."""
RESPONSE_ATTRIBUTES = ("response.code_details", "upstream.address", "upstream.request_attempt_count")
"""Who made the answer, whom Envoy asked last, and how often it asked: so the picker knows of refused connections."""
_STREAM_RETRIES = 3
_SEND = ext_proc.ProcessingModeHeaderSendMode.SEND
_SKIP = ext_proc.ProcessingModeHeaderSendMode.SKIP


def ext_proc_filter(options: EnvoyOptions) -> hcm.HttpFilter:
    """The entry for `http_filters`; it belongs before the router and talks to the cluster `endpoint_picker`.

    `grpc_service.timeout` stays unset: a stream lives as long as the request, however long that is.
    A stream that the picker has not answered yet may go to another replica; that costs nothing but a second pick.
    """
    return hcm.HttpFilter(
        name="envoy.filters.http.ext_proc",
        typed_config=typed(
            ext_proc.ExternalProcessor(
                grpc_service=core.GrpcService(
                    envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=EPP_CLUSTER, authority=epp_authority(options)),
                    retry_policy=core.RetryPolicy(
                        retry_on="connect-failure,refused-stream,reset,unavailable",
                        num_retries=_STREAM_RETRIES,
                        retry_back_off=core.BackoffStrategy(base_interval=seconds(0.025), max_interval=seconds(0.25)),
                    ),
                    initial_metadata=_initial_metadata(options),
                ),
                failure_mode_allow=options.fails_open,
                processing_mode=_processing_mode(options),
                message_timeout=seconds(options.message_timeout_s),
                response_attributes=[] if options.pick_only else list(RESPONSE_ATTRIBUTES),
                metadata_options=ext_proc.MetadataOptions(
                    forwarding_namespaces=_namespaces(), receiving_namespaces=_namespaces()
                ),
            )
        ),
    )


def _initial_metadata(options: EnvoyOptions) -> list[core.HeaderValue]:
    """An ORIGINAL_DST cluster takes one address, so there the picker is asked for no more."""
    if options.original_dst:
        return []
    return [core.HeaderValue(key=ENDPOINTS_NAMED, value=str(options.endpoints_named))]


def epp_authority(options: EnvoyOptions) -> str:
    """What gRPC streams to the endpoint picker name as their host."""
    first = options.epp[0]
    return "localhost" if isinstance(first, UnixSocket) else str(first)


def _processing_mode(options: EnvoyOptions) -> ext_proc.ProcessingMode:
    """Which phases the endpoint picker sees.

    Trailers go along with the body: full duplex requires it, and in the other modes they are how the end of a body
    that has trailers becomes known. Response trailers are asked for even where no response body is: as long as they may
    come Envoy keeps the stream, so that the picker knows when the response ends.
    """
    return ext_proc.ProcessingMode(
        request_header_mode=_SEND,
        response_header_mode=_SKIP if options.pick_only else _SEND,
        request_body_mode=_body_mode(options.request_body_mode),
        response_body_mode=_body_mode(options.response_mode),
        request_trailer_mode=_trailer_mode(options.request_body_mode),
        response_trailer_mode=_SKIP if options.pick_only else _SEND,
    )


def _body_mode(mode: BodyMode) -> ext_proc.ProcessingModeBodySendMode:
    return ext_proc.ProcessingModeBodySendMode[mode.value]


def _trailer_mode(mode: BodyMode) -> ext_proc.ProcessingModeHeaderSendMode:
    return _SKIP if mode is BodyMode.NONE else _SEND


def _namespaces() -> ext_proc.MetadataOptionsMetadataNamespaces:
    return ext_proc.MetadataOptionsMetadataNamespaces(untyped=[METADATA_NAMESPACE])
