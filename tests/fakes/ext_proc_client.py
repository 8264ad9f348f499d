"""An ext_proc client without an Envoy: says exactly what a test wants, and sees exactly what comes back.

Built on `envoy-data-plane` messages, so it is a second opinion on the wire format.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ProcessingModeBodySendMode
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google.protobuf import ListValue, Struct, Value

from tests.patience import PATIENCE_S

DESTINATION = "x-gateway-destination-endpoint"
_SUBSET = "x-gateway-destination-endpoint-subset"
_SERVED = "x-gateway-destination-endpoint-served"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_STATES = {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"": "UNKNOWN"}


class ExtProcClient:
    """`async with ExtProcClient("127.0.0.1:9002") as client: await client.pick()`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_UNLIMITED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    def stream(self) -> "ExtProcStream":
        """A new stream: one HTTP request."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        )
        return ExtProcStream(method())

    async def pick(self, **headers: Any) -> str:
        """The address picked for a request without a body, or the reason of an immediate answer."""
        stream = self.stream()
        await stream.send_headers(end_of_stream=True, **headers)
        reply = await stream.read()
        await stream.close()
        assert reply is not None
        return reason(reply) if reply.immediate_response else destination(reply)

    async def picks(self, count: int, **headers: Any) -> Counter[str]:
        """How often each address was picked, one request after the other."""
        return Counter([await self.pick(**headers) for _ in range(count)])

    async def check(self, service: str) -> str:
        """The state that the health service tells of `service`."""
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        name = service.encode()
        return _STATES[await method(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=PATIENCE_S)]


class ExtProcStream:
    """One call; `read` gives None once the server has ended it."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self.call = call

    async def send_headers(
        self,
        headers: Mapping[str, str] | None = None,
        *,
        end_of_stream: bool = False,
        mode: str = "FULL_DUPLEX_STREAMED",
        subset: Sequence[str] | str | None = None,
    ) -> None:
        """The first message; `subset` is the hint, as a list or as one text."""
        request = ext_proc.ProcessingRequest(
            request_headers=_http_headers({":method": "POST", ":path": "/v1/completions", **(headers or {})}, end_of_stream),
            protocol_config=ext_proc.ProtocolConfiguration(
                request_body_mode=ProcessingModeBodySendMode[mode], response_body_mode=ProcessingModeBodySendMode[mode]
            ),
        )
        if subset is not None:
            value = _text(subset) if isinstance(subset, str) else Value(list_value=ListValue(values=[_text(s) for s in subset]))
            request.metadata_context = _metadata("envoy.lb.subset_hint", _SUBSET, value)
        await self.call.write(bytes(request))

    async def send_body(self, body: bytes, *, end_of_stream: bool = False) -> None:
        """A piece of the request body."""
        await self.call.write(
            bytes(ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=end_of_stream)))
        )

    async def send_response_headers(self, status: int = 200, *, served: str | None = None, end_of_stream: bool = False) -> None:
        """The model server begins to answer; `served` says which one it was."""
        request = ext_proc.ProcessingRequest(response_headers=_http_headers({":status": str(status)}, end_of_stream))
        if served is not None:
            request.metadata_context = _metadata("envoy.lb", _SERVED, _text(served))
        await self.call.write(bytes(request))

    async def read(self) -> ext_proc.ProcessingResponse | None:
        """The next reply."""
        async with asyncio.timeout(PATIENCE_S):
            reply = await self.call.read()
        return ext_proc.ProcessingResponse.parse(reply) if isinstance(reply, bytes) else None

    async def close(self) -> grpc.StatusCode:
        """Half-close, and wait for the end; replies that are still to come are dropped."""
        await self.call.done_writing()
        while await self.read() is not None:  # grpcio tells the end only after the last message was taken
            pass
        return await self.call.code()


def destination(reply: ext_proc.ProcessingResponse) -> str:
    """The address that a reply names, which header and metadata must agree on."""
    content = reply.request_headers or reply.request_body
    assert content is not None
    assert content.response is not None
    assert content.response.header_mutation is not None
    (header,) = [o.header for o in content.response.header_mutation.set_headers if o.header and o.header.key == DESTINATION]
    assert reply.dynamic_metadata is not None
    lb = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    assert lb is not None
    assert lb.fields[DESTINATION].string_value == header.raw_value.decode()
    return header.raw_value.decode()


def reason(reply: ext_proc.ProcessingResponse) -> str:
    """Status and `x-epp-reason` of an immediate answer: `503 no_endpoints`."""
    answer = reply.immediate_response
    assert answer is not None
    assert answer.status is not None
    assert answer.headers is not None
    headers = {o.header.key: o.header.raw_value.decode() for o in answer.headers.set_headers if o.header}
    return f"{answer.status.code.value} {headers['x-epp-reason']}"


def _http_headers(headers: Mapping[str, str], end_of_stream: bool) -> ext_proc.HttpHeaders:
    fields = [core.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    return ext_proc.HttpHeaders(headers=core.HeaderMap(headers=fields), end_of_stream=end_of_stream)


def _metadata(namespace: str, key: str, value: Value) -> core.Metadata:
    return core.Metadata(filter_metadata={namespace: Struct(fields={key: value})})


def _text(text: str) -> Value:
    return Value(string_value=text)
