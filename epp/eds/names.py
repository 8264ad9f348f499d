"""Names on the wire of the endpoint discovery service."""

EDS_SERVICE = "envoy.service.endpoint.v3.EndpointDiscoveryService"
STREAM_METHOD = f"/{EDS_SERVICE}/StreamEndpoints"
TYPE_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
MODEL_SERVERS = "model_servers"
"""The cluster in the configurations that `epp envoy-config` prints; the pool's own name is understood besides."""
