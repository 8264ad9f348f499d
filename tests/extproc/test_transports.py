"""Both transports over real sockets, with grpcio's own client: whatever one answers, the other answers too."""

import asyncio
import datetime
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import grpc
import pytest
from cryptography import x509
from hpack import Encoder

from epp.clock import SystemClock
from epp.config.settings import LimitSettings
from epp.errors import BindError
from epp.extproc.budget import BufferBudget
from epp.extproc.exchange import Exchange
from epp.extproc.grpcio_transport import GrpcioTransport
from epp.extproc.health import Health
from epp.extproc.names import EXT_PROC_SERVICE
from epp.extproc.socket_transport import SocketTransport
from epp.extproc.tls import CertificateReloader, KeyPair, self_signed
from epp.lifecycle import Lifecycle, Phase
from epp.pb.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)
from epp.pb.grpc.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.extproc.exchange import DESTINATION, Bench

HEADERS = ProcessingRequest(
    request_headers=HttpHeaders(headers=HeaderMap(headers=[HeaderValue(key=":path", raw_value=b"/v1/completions")]))
)
GET = ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True))

PATIENCE_S = 60.0
"""How long what must come may take, on a machine however busy."""

Transport = GrpcioTransport | SocketTransport


def body(piece: bytes, *, end: bool = True) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=end))


class Served:
    """A running transport and a channel to it."""

    def __init__(
        self, transport: Transport, running: asyncio.Task[Never], lifecycle: Lifecycle, port: int, channel: grpc.aio.Channel
    ) -> None:
        self.transport = transport
        self.running = running
        self.lifecycle = lifecycle
        self.port = port
        self.channel = channel

    def process(self, *metadata: tuple[str, str]) -> Any:
        method: Any = self.channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        return method(metadata=metadata)

    async def check(self, service: str) -> int:
        method: Any = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        status: int = (await method(HealthCheckRequest(service=service))).status
        return status


class Connections:
    """Hears of connections that came to nothing."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def handshake_failed(self, why: str) -> None:
        self.failures.append(why)

    def limit_hit(self, limit: str) -> None:
        self.failures.append(limit)


@pytest.fixture(params=["socket", "grpcio"], autouse=True)
def transport_name(request: pytest.FixtureRequest) -> Iterator[str]:
    NAME.append(request.param)
    yield request.param
    NAME.pop()


NAME: list[str] = []


def make_transport(exchange: Exchange, health: Health) -> Transport:
    if NAME[-1] == "grpcio":
        return GrpcioTransport(exchange, health)
    return SocketTransport(exchange, health, observer=Connections())


@asynccontextmanager
async def served(exchange: Exchange, tls: KeyPair | CertificateReloader | None = None) -> AsyncIterator[Served]:
    lifecycle = Lifecycle()
    transport = make_transport(exchange, Health(lifecycle, ["my-alias"]))
    _, port = await transport.listen("127.0.0.1", 0, limits=exchange.limits, tls=tls)
    running = asyncio.create_task(transport.run())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Served(transport, running, lifecycle, port, channel)
    finally:
        running.cancel()
        await transport.stop(0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_request_is_answered_and_the_call_ends_only_when_the_client_half_closes() -> None:
    """Field report 18: the server must not end the call on its own."""
    async with served(Bench().exchange) as server:
        call = server.process()
        await call.write(HEADERS)
        await call.write(body(b'{"model": "m"}'))
        first, second = await call.read(), await call.read()
        assert first.request_headers.response.header_mutation.set_headers[0].header.raw_value == DESTINATION.encode()
        assert second.request_body.response.body_mutation.streamed_response.body == b'{"model": "m"}'
        third = asyncio.ensure_future(call.read())
        await asyncio.wait([third], timeout=0.3)
        assert not third.done()
        await call.done_writing()
        assert await third is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(("said", "named"), [(None, 1), ("3", 3), ("0", 1), ("99", 5), ("many", 1), ("-2", 1), ("", 1)])
async def test_the_streams_metadata_tell_how_many_endpoints_a_pick_may_name(said: str | None, named: int) -> None:
    """Field report 87: some proxies read only the first, so the length is for the proxy to say."""
    bench = Bench()
    async with served(bench.exchange) as server:
        call = server.process(*(() if said is None else [("x-epp-endpoints-named", said)]))
        await call.write(GET)
        await call.read()
        await call.done_writing()
    assert [request.endpoints_named for request in bench.requests] == [named]


async def test_headers_alone_are_answered_at_once() -> None:
    """Field report 20."""
    async with served(Bench().exchange) as server:
        call = server.process()
        await call.write(GET)
        assert (await call.read()).HasField("request_headers")
        await call.done_writing()


async def test_resets_after_the_pick_are_normal_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Field reports 17 and 46: no error log, counts back to zero, memory returned."""
    gc.collect()  # what asyncio says of tasks that earlier tests left behind is said now
    caplog.clear()
    bench = Bench()
    async with served(bench.exchange) as server:
        for _ in range(100):
            call = server.process()
            await call.write(HEADERS)
            await call.write(body(b"{}"))
            await call.read()
            call.cancel()
        half_sent = server.process()
        await half_sent.write(HEADERS)
        await half_sent.write(body(b"half", end=False))
        await until(lambda: bench.budget.held_bytes == 4)
        half_sent.cancel()
        await until(lambda: server.transport.open_streams == 0)
    assert all(pick.releases for pick in bench.picks)
    assert bench.budget.held_bytes == 0
    assert bench.bugs == []
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert bench.observer.counts["ended"] == 101


class HastyOnceHeld:
    """Limits whose time for a body is short once so many bytes are held, and long before: the test gets to send them."""

    def __init__(self, budget: BufferBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size_bytes = size_bytes
        self._others = LimitSettings()

    @property
    def request_body_timeout_s(self) -> float:
        return 0.1 if self._budget.held_bytes >= self._size_bytes else 3_600.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


async def test_a_body_whose_end_never_comes_is_answered_408_and_its_memory_returns() -> None:
    """Field report 16: bounded wait, bounded memory."""
    bench = Bench()
    limits: Any = HastyOnceHeld(bench.budget, 10_000)
    async with served(replace(bench.exchange, limits=limits, clock=SystemClock())) as server:
        call = server.process()
        await call.write(HEADERS)
        await call.write(body(bytes(10_000), end=False))
        answer = await call.read()
        assert answer.immediate_response.status.code == 408
        assert await call.read() is grpc.aio.EOF
        await until(lambda: server.transport.open_streams == 0)
    assert bench.budget.held_bytes == 0


async def test_a_refusal_ends_the_call_with_status_ok() -> None:
    """Field report 26: over the limit is a clean 413 with a reason."""
    async with served(Bench(max_body=1000).exchange) as server:
        call = server.process()
        await call.write(HEADERS)
        await call.write(body(bytes(2000), end=False))
        answer = await call.read()
        assert answer.immediate_response.status.code == 413
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_messages_well_above_grpcs_own_default_are_taken() -> None:
    """Field report 26: one 8 MiB message in buffered mode gets a pick."""
    async with served(Bench(max_body=64 << 20, max_buffered=64 << 20).exchange) as server:
        call = server.process()
        await call.write(HEADERS)
        await call.write(body(bytes(8 << 20)))
        assert (await call.read()).HasField("request_headers")
        await call.done_writing()


async def test_bytes_that_are_no_message_end_that_call_alone() -> None:
    async with served(Bench().exchange) as server:
        raw: Any = server.channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")
        call = raw()
        await call.write(b"\xff\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        good = server.process()
        await good.write(GET)
        assert (await good.read()).HasField("request_headers")
        await good.done_writing()


@pytest.mark.parametrize("service", ["", EXT_PROC_SERVICE, "readiness", "inference-extension", "my-alias"])
async def test_health_follows_the_lifecycle(service: str) -> None:
    """Field report 29: answers the names that gateways ask for, others can be configured."""
    async with served(Bench().exchange) as server:
        assert await server.check(service) == HealthCheckResponse.NOT_SERVING
        server.lifecycle.enter(Phase.SERVING)
        assert await server.check(service) == HealthCheckResponse.SERVING
        server.lifecycle.enter(Phase.DRAINING)
        assert await server.check(service) == HealthCheckResponse.NOT_SERVING


async def test_liveness_stays_while_readiness_goes() -> None:
    """Field report 75: readiness turns off, liveness stays."""
    async with served(Bench().exchange) as server:
        for phase in (Phase.SERVING, Phase.DRAINING):
            server.lifecycle.enter(phase)
            assert await server.check("liveness") == HealthCheckResponse.SERVING


async def test_an_unknown_health_service_is_not_found() -> None:
    async with served(Bench().exchange) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.check("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_each_change_once() -> None:
    async with served(Bench().exchange) as server:
        method: Any = server.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        call = method(HealthCheckRequest(service="readiness"))
        assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
        server.lifecycle.enter(Phase.SERVING)
        assert (await call.read()).status == HealthCheckResponse.SERVING
        server.lifecycle.enter(Phase.DRAINING)
        assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
        call.cancel()


async def test_a_path_that_is_no_text_never_leaves_a_dead_port_behind_a_ready_process(transport_name: str) -> None:
    """It ends a `grpc.aio` server for good; ours answers others as before."""
    pseudo = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/envoy\xd5"), (b":authority", b"x")]
    block = Encoder().encode([*pseudo, (b"content-type", b"application/grpc"), (b"te", b"trailers")])
    length = len(block).to_bytes(3, "big")
    async with served(Bench().exchange) as server:
        server.lifecycle.enter(Phase.SERVING)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + length + b"\1\5\0\0\0\1" + block)
        if transport_name == "grpcio":
            with pytest.raises(RuntimeError, match="ended by itself"):
                await asyncio.wait_for(server.running, PATIENCE_S)
        else:
            await asyncio.wait_for(reader.readexactly(9), PATIENCE_S)
            assert await server.check("") == HealthCheckResponse.SERVING
        writer.close()


async def test_a_taken_port_is_named() -> None:
    async with served(Bench().exchange) as server:
        other = make_transport(Bench().exchange, Health(Lifecycle()))
        with pytest.raises(BindError, match=rf"expected .* free port .*\b{server.port}\b|{server.port}: expected a free port"):
            await other.listen("127.0.0.1", server.port, limits=LimitSettings(), tls=None)


async def presented_serial(port: int) -> int:
    """The serial number of the certificate that the next handshake shows."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    # The server need not say goodbye; how the connection ends is nobody's business, and later tests are not to hear of it.
    closed = asyncio.gather(writer.wait_closed(), return_exceptions=True)
    await asyncio.wait([closed], timeout=1.0)
    return x509.load_der_x509_certificate(der).serial_number


def write_pair(folder: Path) -> int:
    pair = self_signed(datetime.datetime.now(datetime.UTC))
    folder.mkdir()
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return x509.load_pem_x509_certificate(pair.certificate).serial_number


class SteppingClock(SystemClock):
    """Real time plus what a test adds."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return SystemClock.monotonic_s() + self.ahead_s


async def test_changed_certificates_are_served_to_new_handshakes_and_broken_ones_are_not(tmp_path: Path) -> None:
    """Field report 31: atomic symlink swap, running streams unharmed, a broken key keeps the old pair."""
    first, second = write_pair(tmp_path / "1"), write_pair(tmp_path / "2")
    current = tmp_path / "current"
    current.symlink_to("1")
    clock, log = SteppingClock(), Log()
    reloader = CertificateReloader(current, clock=clock, log=log)
    async with served(Bench().exchange, tls=reloader) as server:
        assert await presented_serial(server.port) == first
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").rename(current)
        clock.ahead_s += 60.0
        assert await presented_serial(server.port) == second
        (tmp_path / "2" / "tls.key").write_text("broken")
        clock.ahead_s += 60.0
        assert await presented_serial(server.port) == second
        clock.ahead_s += 60.0
        assert await presented_serial(server.port) == second
    assert log.events == ["certificate_reloaded", "certificate_kept"]


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    error = info


async def test_an_open_stream_survives_the_change_of_certificates(tmp_path: Path) -> None:
    """Field report 31."""
    write_pair(tmp_path / "1")
    clock = SteppingClock()
    reloader = CertificateReloader(tmp_path / "1", clock=clock, log=Log())
    async with served(Bench().exchange, tls=reloader) as server:
        credentials = grpc.ssl_channel_credentials((tmp_path / "1" / "tls.crt").read_bytes())
        options = (("grpc.ssl_target_name_override", "localhost"),)
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
            call = Served(server.transport, server.running, server.lifecycle, server.port, channel).process()
            await call.write(HEADERS)
            pair = self_signed(datetime.datetime.now(datetime.UTC))
            (tmp_path / "1" / "tls.crt").write_bytes(pair.certificate)
            (tmp_path / "1" / "tls.key").write_bytes(pair.key)
            clock.ahead_s += 60.0
            await presented_serial(server.port)
            await call.write(body(b"{}"))
            assert (await call.read()).HasField("request_headers")
            await call.done_writing()
