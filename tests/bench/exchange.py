"""What real Envoy 1.40 says to the endpoint picker for one chat request, as bytes (both bodies FULL_DUPLEX_STREAMED)."""

import json
from typing import Any

from google.protobuf.struct_pb2 import Struct

from epp.pb.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue, Metadata
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProtocolConfiguration,
)
from tests.bench.envoys import ANSWER

PATH = "/v1/chat/completions"
_CHUNK_BYTES = 32_768
_FULL_DUPLEX_STREAMED = 4


def messages_of(body: bytes) -> list[bytes]:
    """Headers, the body in chunks as Envoy's buffer makes them, an empty end; the same for the response."""
    modes = ProtocolConfiguration(request_body_mode=_FULL_DUPLEX_STREAMED, response_body_mode=_FULL_DUPLEX_STREAMED)  # type: ignore[arg-type]  # the enum's number
    request_headers = {
        ":authority": "127.0.0.1:8081",
        ":path": PATH,
        ":method": "POST",
        ":scheme": "http",
        "content-type": "application/json",
        "accept-encoding": "gzip",
        "user-agent": "epp-bench",
        "content-length": str(len(body)),
        "x-forwarded-proto": "http",
        "x-request-id": "93da5143-4077-4366-9501-80f1071eb241",
    }
    answer = json.dumps(ANSWER).encode()
    response_headers = {
        ":status": "200",
        "content-type": "application/json",
        "content-length": str(len(answer)),
        "date": "Mon, 01 Jan 2035 00:00:00 GMT",
        "server": "envoy",
        "x-envoy-upstream-service-time": "0",
    }
    chunks = [body[at : at + _CHUNK_BYTES] for at in range(0, len(body), _CHUNK_BYTES)]
    requests = [
        ProcessingRequest(request_headers=_headers(request_headers), protocol_config=modes),
        *(ProcessingRequest(request_body=HttpBody(body=chunk)) for chunk in chunks),
        ProcessingRequest(request_body=HttpBody(end_of_stream=True)),
        ProcessingRequest(response_headers=_headers(response_headers), **_beside_the_response()),
        ProcessingRequest(response_body=HttpBody(body=answer)),
        ProcessingRequest(response_body=HttpBody(end_of_stream=True)),
    ]
    return [request.SerializeToString() for request in requests]


def _beside_the_response() -> dict[str, Any]:
    """What was picked, and what the printed filter asks for."""
    picked, attributes, metadata = Struct(), Struct(), Metadata()
    picked.update({"x-gateway-destination-endpoint": "10.0.0.1:8000"})
    attributes.update(
        {
            "upstream.request_attempt_count": 1.0,
            "response.code_details": "via_upstream",
            "upstream.address": "10.0.0.1:8000",
        }
    )
    metadata.filter_metadata["envoy.lb"].CopyFrom(picked)
    return {"metadata_context": metadata, "attributes": {"envoy.filters.http.ext_proc": attributes}}


def _headers(pairs: dict[str, str]) -> HttpHeaders:
    return HttpHeaders(
        headers=HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs.items()])
    )
