"""The ext_proc, EDS and health services on `grpc.aio`: the reference transport. All that is grpcio is in this file.

It uses the read/write API with bytes: an async generator with message objects costs about half as much again.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from epp.config.settings import LimitSettings
from epp.eds.endpoint_lists import EndpointLists, TooManySubscribersError
from epp.eds.names import EDS_SERVICE
from epp.eds.subscription import Subscription, SubscriptionError
from epp.errors import BindError
from epp.extproc.decoder import MessageError, decode
from epp.extproc.encoder import encode
from epp.extproc.exchange import Exchange
from epp.extproc.health import Health, HealthStatus
from epp.extproc.names import ENDPOINTS_NAMED, EXT_PROC_SERVICE, endpoints_named
from epp.extproc.session import Session
from epp.extproc.tls import CertificateReloader, KeyPair
from epp.lifecycle import Phase
from epp.pb.grpc.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

HEALTH_SERVICE = "grpc.health.v1.Health"

_STREAM_WINDOW_BYTES = 256 << 10
"""What a peer may send on a stream ahead of our reading."""
_EVERY_PORT = (
    ("grpc.so_reuseport", 0),
    # Left to itself, gRPC widens the windows of a fast peer to many MiB a stream. It would take in whole answers that a
    # slow client does not read (15 MB each were seen), instead of letting back-pressure reach the model server.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _STREAM_WINDOW_BYTES),
)

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcioTransport:
    """One server for ext_proc with health, and optionally another for health alone.

    Attributes:
        open_streams: ext_proc calls that have not ended.
    """

    name = "grpcio"

    def __init__(self, exchange: Exchange, health: Health, *, lists: EndpointLists | None = None) -> None:
        self._exchange = exchange
        self._health = health
        self._lists = lists
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()  # of grpc.aio: a server's loop, and its wait for the first call
        self._stopping = False
        self.open_streams = 0

    async def listen(
        self, host: str, port: int, *, limits: LimitSettings, tls: KeyPair | CertificateReloader | None
    ) -> tuple[str, int]:
        """Open the ext_proc port (with health on it), with TLS if `tls` is given; returns where it listens.

        Raises:
            BindError: The port cannot be opened.
        """
        process: Any = grpc.stream_stream_rpc_method_handler(self._process)
        handlers = [grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": process}), self._health_handlers()]
        if self._lists is not None:
            handlers.append(_eds_handler(self._lists))
        options = (
            ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
            ("grpc.max_receive_message_length", limits.max_message_bytes),
            ("grpc.max_send_message_length", -1),
        )
        return await self._start(
            tuple(handlers), options, host, port, None if tls is None else _credentials(tls), "--grpc-port"
        )

    async def listen_for_health(self, host: str, port: int) -> tuple[str, int]:
        """Open a port for health alone, without TLS, as the kubelet's gRPC probes want it."""
        return await self._start((self._health_handlers(),), (), host, port, None, "--grpc-health-port")

    async def run(self) -> NoReturn:
        """Watch over the servers until cancelled.

        A call whose path is not UTF-8 ends a `grpc.aio` server for good, in a task of its own that nobody looks at; this
        process must not go on as ready then.

        Raises:
            RuntimeError: A server has ended by itself.
        """
        pending = self._tasks
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            failures = [failure for task in ended if not task.cancelled() and (failure := task.exception()) is not None]
            if failures and not self._stopping:
                raise RuntimeError("the gRPC server ended by itself") from failures[0]
        while True:
            await asyncio.Event().wait()

    def send_elsewhere(self) -> None:
        """grpcio can tell peers to leave only by taking no new connections, which would fail those that come: so not yet."""

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait up to `grace_s` for the running ones, then cut them."""
        self._stopping = True
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        self._servers.clear()

    async def _start(
        self,
        handlers: tuple[grpc.GenericRpcHandler, ...],
        options: tuple[tuple[str, int], ...],
        host: str,
        port: int,
        credentials: grpc.ServerCredentials | None,
        flag: str,
    ) -> tuple[str, int]:
        problem = ""
        for literal in (f"[{host}]" if ":" in host else host,) if host else ("[::]", "0.0.0.0"):  # noqa: S104
            server = grpc.aio.server(options=(*_EVERY_PORT, *options))
            server.add_generic_rpc_handlers(handlers)
            address = f"{literal}:{port}"
            try:
                bound = (
                    server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
                )
            except RuntimeError as error:
                problem = str(error)
                continue
            others = asyncio.all_tasks()
            await server.start()  # does not wait for anything, so that all new tasks are its own
            self._servers.append(server)
            self._tasks |= asyncio.all_tasks() - others
            return literal, bound
        await self.stop(0.0)  # what is open already must not be left to the garbage collector
        raise BindError(f"{flag}: expected a free port on {host or 'all addresses'}, found {port}: {problem}")

    # ── ext_proc ──

    async def _process(self, _: AsyncIterator[bytes], context: Context) -> None:
        session = Session(self._exchange, _endpoints_named(context))
        cancelled = True
        self.open_streams += 1
        try:
            while True:
                message = await self._read(context, session)
                if message is None:
                    actions = session.expire()
                elif message is grpc.aio.EOF:
                    break
                elif (event := decode(message)) is None:
                    continue
                else:
                    actions = session.receive(event)
                for action in actions:
                    await context.write(encode(action))
                session.drained()
                if session.refused:
                    break
            cancelled = False
        except MessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self.open_streams -= 1
            session.end(cancelled=cancelled)

    async def _read(self, context: Context, session: Session) -> Any:
        """The next message, `grpc.aio.EOF` at half-close, None if a body stopped for too long."""
        if not session.collecting:
            return await context.read()
        try:
            async with asyncio.timeout(self._exchange.limits.request_body_timeout_s):
                return await context.read()
        except TimeoutError:
            return None

    # ── health ──

    def _health_handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    async def _check(self, message: bytes, context: Context) -> bytes:
        service = await _service(message, context)
        status = self._health.check(service)
        if status is HealthStatus.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {service[:100]!r}")
        return _status(status)

    async def _watch(self, message: bytes, context: Context) -> None:
        service = await _service(message, context)
        changed = asyncio.Event()

        def wake(_: Phase) -> None:
            changed.set()

        self._health.lifecycle.on_change(wake)
        try:
            told: HealthStatus | None = None
            while True:
                changed.clear()
                status = self._health.check(service)
                if status is not told:
                    told = status
                    await context.write(_status(status))
                await changed.wait()
        finally:
            self._health.lifecycle.forget(wake)


def _eds_handler(lists: EndpointLists) -> grpc.GenericRpcHandler:
    async def stream_endpoints(_: AsyncIterator[bytes], context: Context) -> None:
        outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        try:
            subscription = lists.subscribe(outbox.put_nowait, lambda: outbox.put_nowait(None))
        except TooManySubscribersError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise
        reading = asyncio.create_task(_read_requests(context, subscription))
        reading.add_done_callback(lambda _: outbox.put_nowait(None))
        try:
            while (response := await outbox.get()) is not None:
                await context.write(response)
            if not reading.done():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
            await reading
        except SubscriptionError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            subscription.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    method: Any = grpc.stream_stream_rpc_method_handler(stream_endpoints)
    return grpc.method_handlers_generic_handler(EDS_SERVICE, {"StreamEndpoints": method})


async def _read_requests(context: Context, subscription: Subscription) -> None:
    """Until the client half-closes; a SubscriptionError ends it earlier."""
    while isinstance(message := await context.read(), bytes):
        subscription.receive(message)


def _endpoints_named(context: Context) -> int:
    metadata = context.invocation_metadata() or ()
    return endpoints_named(next((value for key, value in metadata if key == ENDPOINTS_NAMED), None))


async def _service(message: bytes, context: Context) -> str:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a HealthCheckRequest")
        raise


def _status(status: HealthStatus) -> bytes:
    return HealthCheckResponse(status=status.value).SerializeToString()  # type: ignore[arg-type]  # the numbers are the same


def _credentials(tls: KeyPair | CertificateReloader) -> grpc.ServerCredentials:
    if isinstance(tls, KeyPair):
        return grpc.ssl_server_credentials([(tls.key, tls.certificate)])

    def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        pair = tls.changed()
        return None if pair is None else configuration(pair)

    return grpc.dynamic_ssl_server_credentials(configuration(tls.current), fetch)  # type: ignore[arg-type]  # None is allowed
