"""What only our own transport can do."""

import asyncio
import datetime
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from epp.config.settings import LimitSettings
from epp.errors import BindError, ConfigError
from epp.extproc.health import Health
from epp.extproc.names import EXT_PROC_SERVICE
from epp.extproc.socket_transport import SocketTransport
from epp.extproc.tls import KeyPair, read_client_ca, self_signed
from epp.h2.frames import PREFACE
from epp.lifecycle import Lifecycle, Phase
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)
from epp.pb.grpc.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.extproc.exchange import Bench
from tests.patience import PATIENCE_S


class Connections:
    """Hears of connections that came to nothing."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.limits: list[str] = []

    def handshake_failed(self, why: str) -> None:
        self.failures.append(why)

    def limit_hit(self, limit: str) -> None:
        self.limits.append(limit)


@asynccontextmanager
async def transport(heard: Connections | None = None) -> AsyncIterator[SocketTransport]:
    lifecycle = Lifecycle()
    lifecycle.enter(Phase.SERVING)
    bench = Bench()
    served = SocketTransport(bench.exchange, Health(lifecycle), observer=heard or Connections())
    try:
        yield served
    finally:
        await served.stop(0.0)


async def check(channel: grpc.aio.Channel) -> int:
    method: Any = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    status: int = (await method(HealthCheckRequest(service=""), timeout=PATIENCE_S)).status
    return status


def pair() -> KeyPair:
    return self_signed(datetime.datetime.now(datetime.UTC))


async def test_a_unix_socket_serves_ext_proc_and_health(tmp_path: Path) -> None:
    async with transport() as served:
        await served.listen_on_unix_socket(str(tmp_path / "epp.sock"), limits=LimitSettings())
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/epp.sock") as channel:
            assert await check(channel) == HealthCheckResponse.SERVING
            method: Any = channel.stream_stream(
                f"/{EXT_PROC_SERVICE}/Process",
                request_serializer=ProcessingRequest.SerializeToString,
                response_deserializer=ProcessingResponse.FromString,
            )
            call = method()
            await call.write(ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)))
            assert (await call.read()).HasField("request_headers")
            await call.done_writing()


async def test_a_unix_socket_that_was_left_behind_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "epp.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    async with transport() as first, transport() as second:
        await first.listen_on_unix_socket(path, limits=LimitSettings())
        with pytest.raises(BindError, match=r"--grpc-socket: expected a path where a socket can be made, found .*epp.sock"):
            await second.listen_on_unix_socket(path, limits=LimitSettings())


async def test_plaintext_on_the_tls_port_is_counted_each_time() -> None:
    """Field report 30: cleartext HTTP/2 to the TLS port ten times."""
    heard = Connections()
    async with transport(heard) as served:
        _, port = await served.listen("127.0.0.1", 0, limits=LimitSettings(), tls=pair())
        for _ in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE)
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
            await writer.wait_closed()
    assert heard.failures == ["expected TLS, found plaintext"] * 10


async def test_a_client_that_does_not_trust_the_certificate_is_counted() -> None:
    """Field report 30: an unverifiable self-signed certificate."""
    heard = Connections()
    async with transport(heard) as served:
        _, port = await served.listen("127.0.0.1", 0, limits=LimitSettings(), tls=pair())
        credentials = grpc.ssl_channel_credentials(pair().certificate)
        options = (("grpc.ssl_target_name_override", "localhost"),)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check(channel)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert heard.failures


async def test_with_a_client_ca_only_clients_with_a_certificate_of_theirs_are_served() -> None:
    server, client, stranger = pair(), pair(), pair()
    async with transport() as served:
        _, port = await served.listen("127.0.0.1", 0, limits=LimitSettings(), tls=server, client_ca=client.certificate)
        options = (("grpc.ssl_target_name_override", "localhost"),)
        for shown, good in ((client, True), (stranger, False), (None, False)):
            key, certificate = (None, None) if shown is None else (shown.key, shown.certificate)
            credentials = grpc.ssl_channel_credentials(server.certificate, key, certificate)
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
                if good:
                    assert await check(channel) == HealthCheckResponse.SERVING
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await check(channel)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_client_ca_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--client-ca: expected .*nowhere to be readable"):
        read_client_ca(tmp_path / "nowhere")
    (tmp_path / "ca").write_text("hello")
    with pytest.raises(ConfigError, match=r"--client-ca: expected certificates in PEM in .*ca, found something else"):
        read_client_ca(tmp_path / "ca")


async def test_connections_over_the_limit_are_dropped_and_counted() -> None:
    heard = Connections()
    async with transport(heard) as served:
        _, port = await served.listen("127.0.0.1", 0, limits=LimitSettings(max_connections=2), tls=None)
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, _ in streams[:2]:
            assert (await asyncio.wait_for(reader.readexactly(9), PATIENCE_S))[3] == 4  # SETTINGS
        assert await asyncio.wait_for(streams[2][0].read(), PATIENCE_S) == b""
        for _, writer in streams:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert heard.limits == ["connections"]
    assert served.tally.hits["connections"] == 1
