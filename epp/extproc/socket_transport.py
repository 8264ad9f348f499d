"""The ext_proc, endpoint discovery and health services on our own HTTP/2: no task, no await and no exception per message."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import NoReturn

from google.protobuf.message import DecodeError

from epp.config.settings import LimitSettings
from epp.eds.endpoint_lists import EndpointLists
from epp.eds.names import STREAM_METHOD
from epp.extproc.actions import Action
from epp.extproc.budget import Overdraft
from epp.extproc.decoder import MessageError, decode
from epp.extproc.eds_call import EdsCall
from epp.extproc.encoder import encode
from epp.extproc.exchange import Exchange
from epp.extproc.health import CHECK_METHOD, WATCH_METHOD, Health, HealthStatus
from epp.extproc.names import ENDPOINTS_NAMED, PROCESS_METHOD, endpoints_named
from epp.extproc.session import Session
from epp.extproc.tls import CertificateReloader, KeyPair, server_contexts
from epp.h2.limits import Limits, Tally
from epp.h2.server import Patience, Server, ServerObserver, Shared
from epp.h2.stream import Metadata, Method, Status, Stream
from epp.lifecycle import Phase
from epp.listening import listen, listen_unix
from epp.pb.grpc.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

_ENDPOINTS_NAMED = ENDPOINTS_NAMED.encode()
TICK_S = 0.5
LEAST_CONTROL_BURST = 2_000
MAX_HEALTH_STREAMS = 100
"""Of one connection to the health port; a client of it needs one or two."""


class ProcessCall:
    """One ext_proc call: feeds a session with what the stream brings.

    Attributes:
        session: Its state.
        heard_at_s: When the last message came, monotonic.
    """

    __slots__ = ("_bugs", "_collecting", "_now_s", "_stream", "heard_at_s", "session")

    def __init__(self, stream: Stream, metadata: Metadata, exchange: Exchange, collecting: set["ProcessCall"]) -> None:
        self._stream = stream
        self._bugs = exchange.bugs
        self._now_s = exchange.clock.monotonic_s
        self._collecting = collecting
        self.session = Session(exchange, endpoints_named(metadata.get(_ENDPOINTS_NAMED)))
        self.heard_at_s = 0.0

    def message(self, message: bytes) -> None:
        try:
            event = decode(message)
            if event is not None:
                self._answer(self.session.receive(event))
        except MessageError as error:
            self._stream.finish(Status.INVALID_ARGUMENT, str(error))
        except Exception:  # noqa: BLE001 - a bug must cost this request only, not the connection of all
            self._bug("message")

    def half_closed(self) -> None:
        self._stream.finish()

    def drained(self) -> None:
        self.session.drained()

    def closed(self, *, cancelled: bool) -> None:
        self._collecting.discard(self)
        try:
            self.session.end(cancelled=cancelled)
        except Exception:  # noqa: BLE001 - the other calls of the connection have their end to come
            self._bugs.exception("bug_in_transport", at="closed")

    def expire(self) -> None:
        """The body stopped for too long."""
        try:
            self._answer(self.session.expire())
        except Exception:  # noqa: BLE001 - the other bodies have their turn to come
            self._bug("expire")

    def _answer(self, actions: list[Action]) -> None:
        stream, session = self._stream, self.session
        for action in actions:
            stream.send(encode(action))
        if session.refused:
            self._collecting.discard(self)
            stream.finish()
        elif session.collecting:
            self.heard_at_s = self._now_s()
            self._collecting.add(self)
        elif actions:
            self._collecting.discard(self)
            if not stream.pending_bytes:
                session.drained()

    def _bug(self, at: str) -> None:
        self._bugs.exception("bug_in_transport", at=at)
        self._stream.finish(Status.INTERNAL, "internal error of the endpoint picker")


class CheckCall:
    """One `Check` of the health service."""

    def __init__(self, stream: Stream, health: Health) -> None:
        self._stream = stream
        self._health = health

    def message(self, message: bytes) -> None:
        service = _service(message)
        if service is None:
            self._stream.finish(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest")
            return
        status = self._health.check(service)
        if status is HealthStatus.SERVICE_UNKNOWN:
            self._stream.finish(Status.NOT_FOUND, f"unknown service {service[:100]!r}")
            return
        self._stream.send(_reply(status))
        self._stream.finish()

    def half_closed(self) -> None:
        self._stream.finish(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest, found none")

    def drained(self) -> None:
        """Nothing is held for a check."""

    def closed(self, *, cancelled: bool) -> None:
        """Nothing is held for a check."""


class WatchCall:
    """One `Watch` of the health service: tells the status now and at each change."""

    def __init__(self, stream: Stream, health: Health) -> None:
        self._stream = stream
        self._health = health
        self._service: str | None = None
        self._told: HealthStatus | None = None
        health.lifecycle.on_change(self._tell)

    def message(self, message: bytes) -> None:
        self._service = _service(message)
        if self._service is None:
            self._stream.finish(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest")
        else:
            self._tell(self._health.lifecycle.phase)

    def half_closed(self) -> None:
        if self._service is None:
            self._stream.finish(Status.INVALID_ARGUMENT, "expected a HealthCheckRequest, found none")

    def drained(self) -> None:
        """Nothing is held for a watch."""

    def closed(self, *, cancelled: bool) -> None:
        self._health.lifecycle.forget(self._tell)

    def _tell(self, _: Phase) -> None:
        if self._service is None:
            return
        status = self._health.check(self._service)
        if status is not self._told:
            self._told = status
            self._stream.send(_reply(status))


def _service(message: bytes) -> str | None:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        return None


def _reply(status: HealthStatus) -> bytes:
    return HealthCheckResponse(status=status.value).SerializeToString()  # type: ignore[arg-type]  # the numbers are the same


class SocketTransport:
    """Serves ext_proc, health, and the endpoints of the pool (EDS) if there are `lists` of them, on sockets.

    Attributes:
        tally: Limits that peers hit.
    """

    name = "socket"

    def __init__(
        self, exchange: Exchange, health: Health, *, observer: ServerObserver, lists: EndpointLists | None = None
    ) -> None:
        self._exchange = exchange
        self._collecting: set[ProcessCall] = set()
        self._process: Method = lambda stream, metadata: ProcessCall(stream, metadata, exchange, self._collecting)
        self._health: Mapping[bytes, Method] = {
            CHECK_METHOD.encode(): lambda stream, _: CheckCall(stream, health),
            WATCH_METHOD.encode(): lambda stream, _: WatchCall(stream, health),
        }
        self._eds: Mapping[bytes, Method] = (
            {} if lists is None else {STREAM_METHOD.encode(): lambda stream, _: EdsCall(stream, lists)}
        )
        self._observer = observer
        self._servers: list[Server] = []
        self._process_servers: list[Server] = []
        self.tally = Tally()

    @property
    def open_streams(self) -> int:
        """ext_proc calls that have not ended."""
        return sum(
            isinstance(stream.call, ProcessCall)
            for server in self._servers
            for connection in server.shared.sockets
            for stream in connection.connection.streams.values()
        )

    async def listen(
        self,
        host: str,
        port: int,
        *,
        limits: LimitSettings,
        tls: KeyPair | CertificateReloader | None,
        client_ca: bytes | None = None,
    ) -> tuple[str, int]:
        """Open the ext_proc port (with health on it), with TLS if `tls` is given; returns where it listens.

        Args:
            client_ca: Certificates in PEM that must have signed the clients' own; None to ask for none.

        Raises:
            BindError: The port cannot be opened.
        """
        listening = listen(host, port, flag="--grpc-port")
        await self._server(limits).serve(listening, None if tls is None else server_contexts(tls, client_ca))
        return (f"[{host}]" if ":" in host else host) or "[::]", listening.getsockname()[1]

    async def listen_on_unix_socket(self, path: str, *, limits: LimitSettings) -> None:
        """Open a unix socket for ext_proc and health, without TLS: whoever may open the file may ask.

        Raises:
            BindError: The socket cannot be opened.
        """
        await self._server(limits).serve(listen_unix(path, flag="--grpc-socket"))

    async def listen_for_health(self, host: str, port: int) -> tuple[str, int]:
        """Open a port for health alone, without TLS, as the kubelet's gRPC probes want it.

        Raises:
            BindError: The port cannot be opened.
        """
        listening = listen(host, port, flag="--grpc-health-port")
        limits = Limits(max_message_bytes=65_536, max_concurrent_streams=MAX_HEALTH_STREAMS)
        await self._start(self._health, limits).serve(listening)
        return (f"[{host}]" if ":" in host else host) or "[::]", listening.getsockname()[1]

    async def run(self) -> NoReturn:
        """Look at the clock for all calls and connections; ends by cancellation."""
        while True:
            await asyncio.sleep(min(TICK_S, self._exchange.limits.request_body_timeout_s / 4))
            now_s = self._exchange.clock.monotonic_s()
            oldest_s = now_s - self._exchange.limits.request_body_timeout_s
            for call in [call for call in self._collecting if call.heard_at_s <= oldest_s]:
                call.expire()
            for server in self._servers:
                for connection in tuple(server.shared.sockets):
                    try:
                        connection.tick(now_s)
                    except Exception:  # noqa: BLE001 - the other connections have their turn to come
                        self._exchange.bugs.exception("bug_in_transport", at="tick")
                        connection.abort()

    def send_elsewhere(self) -> None:
        """Tell every peer that asks for picks to open its next streams on another connection; what it has is served on.

        Behind the address of a Service, another connection leads to another replica, and a peer that does not look at health
        would else stay until the end. Connections that came since the last call are told at the next one.
        """
        for server in self._process_servers:
            server.announce_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Tell every peer, wait up to `grace_s` for it to have heard and for the running calls, then close."""
        for server in self._servers:
            server.announce_shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.open_streams or not all(server.shutdown_heard for server in self._servers):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        for server in self._servers:
            await server.close()

    def _server(self, limits: LimitSettings) -> Server:
        methods = {PROCESS_METHOD.encode(): self._process, **self._eds, **self._health}
        bounds = Limits(
            max_message_bytes=limits.max_message_bytes,
            max_concurrent_streams=limits.max_concurrent_streams,
            # A gateway whose clients go away together resets all its streams at once, and that is no attack.
            control_burst=max(LEAST_CONTROL_BURST, 2 * limits.max_concurrent_streams),
        )
        server = self._start(methods, bounds, limits.max_connections)
        self._process_servers.append(server)
        return server

    def _start(self, methods: Mapping[bytes, Method], limits: Limits, max_connections: int = 1_024) -> Server:
        shared = Shared(
            methods=methods,
            limits=limits,
            patience=Patience(),
            observer=self._observer,
            now_s=self._exchange.clock.monotonic_s,
            max_connections=max_connections,
            account=Overdraft(self._exchange.budget),
            tally=self.tally,
        )
        server = Server(shared)
        self._servers.append(server)
        return server
