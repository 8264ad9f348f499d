"""The endpoint discovery service on both transports, with grpcio's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy_data_plane.envoy.config.core.v3 import HealthStatus

from epp.config.settings import LimitSettings
from epp.eds.endpoint_lists import EndpointLists
from epp.extproc.grpcio_transport import GrpcioTransport
from epp.extproc.health import Health
from epp.extproc.socket_transport import SocketTransport
from epp.lifecycle import Lifecycle
from epp.pool.state import PoolState
from tests.eds.client import ack, endpoints, first_request
from tests.eds.test_endpoint_lists import Log
from tests.extproc.exchange import Bench
from tests.extproc.test_transports import Connections
from tests.fakes.pool import pool_of, spec

PATIENCE_S = 60.0
"""How long what must come may take, on a machine however busy."""
METHOD = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"

Transport = GrpcioTransport | SocketTransport


class Served:
    """A running transport, the lists it serves, and a channel to it."""

    def __init__(self, lists: EndpointLists, channel: grpc.aio.Channel) -> None:
        self.lists = lists
        self._channel = channel

    def call(self, method: str = METHOD) -> Any:
        stream: Any = self._channel.stream_stream(method)
        return stream(timeout=PATIENCE_S)

    async def following(self) -> tuple[Any, bytes]:
        """A stream that has its first list, and that list."""
        call = self.call()
        await call.write(first_request())
        return call, await call.read()


@asynccontextmanager
async def served(name: str, pool: PoolState, **bounds: int) -> AsyncIterator[Served]:
    lists = EndpointLists(pool, log=Log(), **bounds)
    exchange, health = Bench().exchange, Health(Lifecycle())
    transport: Transport = (
        GrpcioTransport(exchange, health, lists=lists)
        if name == "grpcio"
        else SocketTransport(exchange, health, observer=Connections(), lists=lists)
    )
    _, port = await transport.listen("127.0.0.1", 0, limits=LimitSettings(), tls=None)
    running = [asyncio.create_task(transport.run()), asyncio.create_task(lists.run())]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Served(lists, channel)
    finally:
        for task in running:
            task.cancel()
        await transport.stop(0.0)
        await asyncio.gather(*running, return_exceptions=True)


pytestmark = pytest.mark.parametrize("name", ["socket", "grpcio"])


async def test_a_stream_gets_the_endpoints_and_each_change(name: str) -> None:
    pool = pool_of(2)
    async with served(name, pool) as server:
        call, response = await server.following()
        await call.write(ack(response))
        pool.sync([spec(1), spec(2, draining=True)])
        changed = await call.read()

    assert endpoints(response) == {"10.0.0.1:8000": HealthStatus.HEALTHY, "10.0.0.2:8000": HealthStatus.HEALTHY}
    assert endpoints(changed)["10.0.0.2:8000"] is HealthStatus.DRAINING


async def test_a_list_of_three_thousand_arrives_whole(name: str) -> None:
    specs = [spec(1, address=f"10.{number >> 8}.{number & 255}.1:8000", name=str(number)) for number in range(3_000)]
    async with served(name, pool_of(specs)) as server:
        _, response = await server.following()

    assert len(endpoints(response)) == 3_000


async def test_shutdown_ends_streams_as_unavailable_and_who_comes_back_is_served(name: str) -> None:
    async with served(name, pool_of(1)) as server:
        call, _ = await server.following()
        server.lists.end_all()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        _, response = await server.following()
        assert endpoints(response)


async def test_a_client_that_half_closes_ends_well_and_is_forgotten(name: str) -> None:
    async with served(name, pool_of(1)) as server:
        call, _ = await server.following()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await forgotten(server)


async def test_a_client_that_resets_is_forgotten(name: str) -> None:
    async with served(name, pool_of(1)) as server:
        call, _ = await server.following()
        call.cancel()
        await forgotten(server)


async def test_other_resources_are_refused_by_status(name: str) -> None:
    async with served(name, pool_of(1)) as server:
        call = server.call()
        await call.write(first_request(type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster"))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "ClusterLoadAssignment" in await call.details()
        await forgotten(server)


async def test_the_incremental_variant_is_unimplemented(name: str) -> None:
    async with served(name, pool_of(1)) as server:
        call = server.call("/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_one_stream_too_many_is_refused_by_status(name: str) -> None:
    async with served(name, pool_of(1), max_subscribers=1) as server:
        await server.following()
        call = server.call()
        await call.write(first_request())
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def forgotten(server: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while server.lists.subscribers:
            await asyncio.sleep(0.005)
