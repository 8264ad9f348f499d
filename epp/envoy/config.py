"""A complete Envoy in front of the pool: one listener, the endpoint picker, and the picked endpoint as destination."""

from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap_v3
from envoy_data_plane.envoy.config.core import v3 as core

from epp.envoy.clusters import epp_cluster, fallback_cluster, picked_cluster
from epp.envoy.listener import client_listener
from epp.envoy.model_servers import lists_cluster, model_servers_cluster
from epp.envoy.options import EnvoyOptions
from epp.envoy.typed import address


def bootstrap(options: EnvoyOptions) -> bootstrap_v3.Bootstrap:
    """What `envoy -c` starts with."""
    if options.original_dst:
        clusters = [epp_cluster(options), picked_cluster(options)]
        if options.fallback:
            clusters.append(fallback_cluster(options))
    else:
        clusters = [epp_cluster(options), lists_cluster(options), model_servers_cluster(options)]
    return bootstrap_v3.Bootstrap(
        # Envoy asks nobody for lists without these two.
        node=None if options.original_dst else core.Node(id="inference-gateway", cluster="inference-gateway"),
        admin=None if options.admin is None else bootstrap_v3.Admin(address=address(options.admin)),
        static_resources=bootstrap_v3.BootstrapStaticResources(listeners=[client_listener(options)], clusters=clusters),
    )
