"""Names on the wire."""

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS_METHOD = f"/{EXT_PROC_SERVICE}/Process"

DESTINATION = "x-gateway-destination-endpoint"
"""Header of the request and key of the metadata that name the pick (endpoint picker protocol of the Gateway API)."""
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
"""Key in the response's metadata: who really took the request."""
ENDPOINTS_NAMED = "x-epp-endpoints-named"
"""gRPC metadata of a stream: how many endpoints this Envoy can try one after the other; without it, one."""
MAX_ENDPOINTS_NAMED = 5
CODE_DETAILS = "response.code_details"
UPSTREAM_ADDRESS = "upstream.address"
ATTEMPT_COUNT = "upstream.request_attempt_count"
"""Attributes that Envoy sends with the response headers if the filter's `response_attributes` name them."""
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"

OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Request headers that name an InferenceObjective, the one that counts first: the name of the llm-d router, and that of the
Gateway API Inference Extension, which the former keeps as an alias."""
OBJECTIVE_MARK = b"-inference-objective"
"""Each of these names holds this: a quick look for what is often not there."""

REASON_HEADER = "x-epp-reason"

PICKER_ONLY_HEADERS = ("x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port", DESTINATION_SERVED)
"""Request headers by which an endpoint picker steers model servers: a client's own copy is removed.

`DESTINATION` is not among them because the pick overwrites it.
"""
PICKER_ONLY_MARKS = (b"-host", b"-endpoint-served")
"""Each of these names holds one of these: a quick look for what is nearly never there."""

MAX_PIECE_BYTES = 62_000
"""Envoy refuses streamed body replies of more than 64 KiB a message; this leaves room for the frame around it."""


def endpoints_named(value: bytes | str | None) -> int:
    """What `ENDPOINTS_NAMED` says, from 1 to `MAX_ENDPOINTS_NAMED`; 1 for what is no number."""
    if value is None or len(value) > 9 or not value.isdigit() or not value.isascii():
        return 1
    return min(max(int(value), 1), MAX_ENDPOINTS_NAMED)
