"""An ext_proc server that always picks one address; it shows what Envoy does, without the product's own code.

Built on `envoy-data-plane` messages, so it is a second opinion on the wire format.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from betterproto2 import which_one_of
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as filter_v3
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Struct, Value

DESTINATION = "x-gateway-destination-endpoint"
PIECE_BYTES = 62_000
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
_Stream = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class Message:
    """One message from Envoy: which phase, how many body bytes, whether it says that it is the last of its body."""

    phase: str
    at_s: float
    body_bytes: int = 0
    end_of_stream: bool = False


@dataclass(slots=True)
class Stream:
    """One ext_proc stream.

    Attributes:
        headers, response_headers: What Envoy sent, by lower-case name.
        ended: `half-close`, `reset`, or None while it lives.
    """

    messages: list[Message] = field(default_factory=list)
    protocol_config: ext_proc.ProtocolConfiguration | None = None
    metadata: core.Metadata | None = None
    headers: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)
    ended: str | None = None
    ended_at_s: float | None = None

    @property
    def phases(self) -> list[str]:
        """The phases in order, each run of the same phase once."""
        runs = [m.phase for m in self.messages]
        return [phase for i, phase in enumerate(runs) if i == 0 or runs[i - 1] != phase]

    def body(self, phase: str) -> list[Message]:
        return [m for m in self.messages if m.phase == phase]


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """How the server answers.

    Attributes:
        destination: The address picked; None sends no pick.
        pick_in: The reply that carries the header: `request_headers` or the last `request_body`.
        metadata_in: The reply that carries the dynamic metadata.
        hold_headers: Keep the reply to the request headers until the body's last piece came (full duplex only).
        hold_s: Seconds before the first reply.
        status: Answer at once with this HTTP status instead of a pick.
        stop_at: End the call with this gRPC status when the phase arrives.
        stop_code: gRPC status for `stop_at`.
    """

    destination: str | None = None
    pick_in: str = "request_headers"
    metadata_in: str = "request_headers"
    hold_headers: bool = False
    hold_s: float = 0.0
    status: int | None = None
    stop_at: str | None = None
    stop_code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


class ExtProcServer:
    """`async with ExtProcServer(Behaviour(destination=…)) as server: server.port`."""

    def __init__(self, behaviour: Behaviour, *, port: int = 0, tls: grpc.ServerCredentials | None = None) -> None:
        self.behaviour = behaviour
        self.port = port
        self.serving = True
        self.streams: list[Stream] = []
        self.health_checks: list[bytes] = []
        self._tls = tls
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        server = grpc.aio.server(options=_UNLIMITED)
        server.add_generic_rpc_handlers((_Services(self._process, self._check),))
        address = f"127.0.0.1:{self.port}"
        self.port = server.add_secure_port(address, self._tls) if self._tls else server.add_insecure_port(address)
        await server.start()
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End all streams and stop listening, as a crash would."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _check(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.health_checks.append(request)
        return _SERVING if self.serving else _NOT_SERVING

    async def _process(self, _: Any, context: _Stream) -> None:
        stream = Stream()
        self.streams.append(stream)
        try:
            await self._converse(stream, context)
            stream.ended = "half-close"
        finally:
            stream.ended = stream.ended or "reset"
            stream.ended_at_s = time.monotonic()

    async def _converse(self, stream: Stream, context: _Stream) -> None:
        held: list[bytes] = []
        while isinstance(raw := await context.read(), bytes):
            request = ext_proc.ProcessingRequest.parse(raw)
            phase = _note(stream, request)
            if self.behaviour.hold_s and len(stream.messages) == 1:
                await asyncio.sleep(self.behaviour.hold_s)
            if phase == self.behaviour.stop_at:
                if self.behaviour.stop_code is grpc.StatusCode.OK:
                    return
                await context.abort(self.behaviour.stop_code, "as the test wants")
            if self.behaviour.status is not None:
                await context.write(bytes(_immediate(self.behaviour.status)))
                return
            held += [bytes(reply) for reply in self._replies(phase, request, stream)]
            if self._may_reply(phase, request):
                for reply in held:
                    await context.write(reply)
                held.clear()

    def _may_reply(self, phase: str, request: ext_proc.ProcessingRequest) -> bool:
        if not self.behaviour.hold_headers or phase.startswith("response") or phase == "request_trailers":
            return True
        body = request.request_body or request.request_headers
        return body is not None and body.end_of_stream

    def _replies(self, phase: str, request: ext_proc.ProcessingRequest, stream: Stream) -> list[ext_proc.ProcessingResponse]:
        body = request.request_body or request.response_body
        if body is None:
            return [self._decorated(phase, _plain_reply(phase), last=True)]
        config = stream.protocol_config or ext_proc.ProtocolConfiguration()
        mode = config.request_body_mode if phase == "request_body" else config.response_body_mode
        if mode != filter_v3.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED:
            return [self._decorated(phase, _plain_reply(phase), last=body.end_of_stream)]
        return [self._decorated(phase, _streamed_reply(phase, piece, last), last=last) for piece, last in _cut(body)]

    def _decorated(self, phase: str, reply: ext_proc.ProcessingResponse, *, last: bool) -> ext_proc.ProcessingResponse:
        destination = self.behaviour.destination
        if destination is None:
            return reply
        if phase == self.behaviour.metadata_in:
            reply.dynamic_metadata = _metadata(destination)
        if phase == self.behaviour.pick_in and last:
            common = _common_of(reply)
            common.header_mutation = ext_proc.HeaderMutation(set_headers=[_overwrite(DESTINATION, destination)])
            common.clear_route_cache = True
        return reply


class _Services(grpc.GenericRpcHandler):
    def __init__(
        self, process: Callable[[Any, _Stream], Awaitable[None]], check: Callable[[bytes, _Stream], Awaitable[bytes]]
    ) -> None:
        self._process = process
        self._check = check

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/envoy.service.ext_proc.v3.ExternalProcessor/Process":
            return grpc.stream_stream_rpc_method_handler(self._process)
        if details.method == "/grpc.health.v1.Health/Check":
            return grpc.unary_unary_rpc_method_handler(self._check)
        return None


def _note(stream: Stream, request: ext_proc.ProcessingRequest) -> str:
    phase, content = which_one_of(request, "request")
    message = Message(phase, time.monotonic())
    if isinstance(content, ext_proc.HttpBody):
        message.body_bytes = len(content.body)
    if isinstance(content, (ext_proc.HttpBody, ext_proc.HttpHeaders)):
        message.end_of_stream = content.end_of_stream
    if request.protocol_config is not None:
        stream.protocol_config = request.protocol_config
    if request.metadata_context is not None:
        stream.metadata = request.metadata_context
    if request.request_headers is not None:
        stream.headers = _by_name(request.request_headers.headers)
    if request.response_headers is not None:
        stream.response_headers = _by_name(request.response_headers.headers)
    stream.messages.append(message)
    return phase


def _by_name(headers: core.HeaderMap | None) -> dict[str, str]:
    return {h.key: (h.raw_value.decode("latin-1") or h.value) for h in headers.headers} if headers else {}


def _cut(body: ext_proc.HttpBody) -> list[tuple[bytes, bool]]:
    starts = range(0, len(body.body), PIECE_BYTES) or range(1)
    pieces = [body.body[start : start + PIECE_BYTES] for start in starts]
    return [(piece, body.end_of_stream and i == len(pieces) - 1) for i, piece in enumerate(pieces)]


def _plain_reply(phase: str) -> ext_proc.ProcessingResponse:
    common = ext_proc.CommonResponse()
    match phase:
        case "request_headers":
            return ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse(response=common))
        case "response_headers":
            return ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse(response=common))
        case "request_body":
            return ext_proc.ProcessingResponse(request_body=ext_proc.BodyResponse(response=common))
        case "response_body":
            return ext_proc.ProcessingResponse(response_body=ext_proc.BodyResponse(response=common))
        case "request_trailers":
            return ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse())
        case _:
            return ext_proc.ProcessingResponse(response_trailers=ext_proc.TrailersResponse())


def _streamed_reply(phase: str, piece: bytes, last: bool) -> ext_proc.ProcessingResponse:
    reply = _plain_reply(phase)
    streamed = ext_proc.StreamedBodyResponse(body=piece, end_of_stream=last)
    _common_of(reply).body_mutation = ext_proc.BodyMutation(streamed_response=streamed)
    return reply


def _common_of(reply: ext_proc.ProcessingResponse) -> ext_proc.CommonResponse:
    _, content = which_one_of(reply, "response")
    assert isinstance(content, (ext_proc.HeadersResponse, ext_proc.BodyResponse))
    assert content.response is not None
    return content.response


def _overwrite(name: str, value: str) -> core.HeaderValueOption:
    return core.HeaderValueOption(
        header=core.HeaderValue(key=name, raw_value=value.encode()),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _metadata(destination: str) -> Struct:
    inner = Struct(fields={DESTINATION: Value(string_value=destination)})
    return Struct(fields={"envoy.lb": Value(struct_value=inner)})


def _immediate(status: int) -> ext_proc.ProcessingResponse:
    return ext_proc.ProcessingResponse(
        immediate_response=ext_proc.ImmediateResponse(status=HttpStatus(code=StatusCode(status)), body=b'{"error": {}}')
    )
