"""The pool as an Envoy cluster whose members the endpoint picker tells (EDS): named endpoints first, then whoever is left."""

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request import v3 as least_request
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as previous_hosts
from envoy_data_plane.envoy.type import v3 as percent

from epp.eds.names import MODEL_SERVERS
from epp.envoy.clusters import (
    DESTINATION_HEADER,
    assignment,
    circuit_breakers,
    discovery,
    endpoint_protocol,
    epp_health_check,
    epp_tls,
    http2_protocol,
    never_panics,
    tcp_keepalive,
)
from epp.envoy.ext_proc_filter import epp_authority
from epp.envoy.options import EnvoyOptions
from epp.envoy.typed import seconds, typed

LISTS_CLUSTER = "endpoint_lists"
FIRST_LIST_S = 2.0
"""How long the start of Envoy waits for the first list. Without an endpoint picker it then serves 503 until one comes."""
LEAST_RETRIES = 2
OTHER_HOST_ATTEMPTS = 10


def model_servers_cluster(options: EnvoyOptions) -> cluster.Cluster:
    """Takes the endpoints that the header names, one after the other, and chooses by itself where it names none.

    Envoy's own choice (no endpoint picker lives, or all that the pick named have failed) is the one with fewer requests of
    two, among those that are well. Changes are taken over at once, as by default they would wait for a second.
    """
    return cluster.Cluster(
        name=MODEL_SERVERS,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(eds_config=_lists_of(options), service_name=MODEL_SERVERS),
        load_balancing_policy=_policy(
            "envoy.load_balancing_policies.override_host",
            override_host.OverrideHost(
                override_host_sources=[override_host.OverrideHostOverrideHostSource(header=DESTINATION_HEADER)],
                fallback_policy=_policy(
                    "envoy.load_balancing_policies.least_request", least_request.LeastRequest(choice_count=2)
                ),
            ),
        ),
        common_lb_config=_follows_at_once(),
        connect_timeout=seconds(options.connect_timeout_s),
        per_connection_buffer_limit_bytes=options.buffer_limit,
        circuit_breakers=circuit_breakers(),
        outlier_detection=_outlier_detection(),
        upstream_connection_options=tcp_keepalive(),
        typed_extension_protocol_options=endpoint_protocol(options),
    )


def lists_cluster(options: EnvoyOptions) -> cluster.Cluster:
    """The endpoint picker's port once more, for the stream that tells the endpoints.

    A replica that hangs or drains would keep that stream and tell nothing new. So here the health check closes connections,
    which would cut requests on those that serve ext_proc; and the last replica is tried whatever its health.
    """
    return cluster.Cluster(
        name=LISTS_CLUSTER,
        type=discovery(options.epp),
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        connect_timeout=seconds(options.connect_timeout_s),
        load_assignment=assignment(LISTS_CLUSTER, options.epp),
        upstream_connection_options=tcp_keepalive(),
        common_lb_config=cluster.ClusterCommonLbConfig(healthy_panic_threshold=percent.Percent(value=1.0)),
        health_checks=[epp_health_check()],
        close_connections_on_host_health_failure=True,
        transport_socket=epp_tls(options),
        typed_extension_protocol_options=http2_protocol(),
    )


def retries(options: EnvoyOptions) -> route.RetryPolicy:
    """When a request goes to another endpoint; there is no time limit for a try.

    Always when the endpoint cannot have seen it. `reset` adds those that it may have seen and that got no byte of an answer:
    inference changes nothing at a server. The number is bounded because a request may be what kills its servers.
    """
    conditions = ["connect-failure", "refused-stream", "reset-before-request"]
    if options.retry_unanswered:
        conditions.append("reset")
    if options.retry_busy:
        conditions.append("retriable-status-codes")
    return route.RetryPolicy(
        retry_on=",".join(conditions),
        num_retries=max(LEAST_RETRIES, options.endpoints_named - 1),
        retriable_status_codes=[503] if options.retry_busy else [],
        retry_back_off=route.RetryPolicyRetryBackOff(base_interval=seconds(0.005), max_interval=seconds(0.05)),
        retry_host_predicate=[
            route.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts", typed_config=typed(previous_hosts.PreviousHostsPredicate())
            )
        ],
        host_selection_retry_max_attempts=OTHER_HOST_ATTEMPTS,
    )


def _lists_of(options: EnvoyOptions) -> core.ConfigSource:
    """The endpoint picker as EDS server; a lost stream is tried again within a second, not within half a minute."""
    back_off = core.BackoffStrategy(base_interval=seconds(0.1), max_interval=seconds(1))
    service = core.GrpcServiceEnvoyGrpc(
        cluster_name=LISTS_CLUSTER,
        authority=epp_authority(options),
        retry_policy=core.RetryPolicy(retry_back_off=back_off),
    )
    return core.ConfigSource(
        resource_api_version=core.ApiVersion.V3,
        initial_fetch_timeout=seconds(FIRST_LIST_S),
        api_config_source=core.ApiConfigSource(
            api_type=core.ApiConfigSourceApiType.GRPC,
            transport_api_version=core.ApiVersion.V3,
            grpc_services=[core.GrpcService(envoy_grpc=service)],
        ),
    )


def _follows_at_once() -> cluster.ClusterCommonLbConfig:
    config = never_panics()
    config.update_merge_window = seconds(0)
    return config


def _outlier_detection() -> cluster.OutlierDetection:
    """Keeps Envoy's own choice off endpoints that refuse or fail at once; those that a pick names are tried all the same."""
    return cluster.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=2,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_local_origin_success_rate=0,
        enforcing_success_rate=0,
        consecutive_5xx=5,
        enforcing_consecutive_5xx=100,
        enforcing_consecutive_gateway_failure=0,
        interval=seconds(0.5),
        base_ejection_time=seconds(2),
        max_ejection_time=seconds(10),
        max_ejection_percent=50,
    )


def _policy(name: str, message: least_request.LeastRequest | override_host.OverrideHost) -> cluster.LoadBalancingPolicy:
    extension = core.TypedExtensionConfig(name=name, typed_config=typed(message))
    return cluster.LoadBalancingPolicy(policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=extension)])
