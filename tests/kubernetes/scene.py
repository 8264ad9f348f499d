"""Pods with model servers behind them, an endpoint picker that finds them in a real API server, and a real Envoy in front."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.fakes.upstream import Upstream
from tests.flows.epp_process import PATIENCE_S, EppProcess, wait_until
from tests.flows.harness import Setting, start_envoy
from tests.kubernetes.cluster import RealCluster

POOL = "pool"
LABELS: Mapping[str, str] = {"app": "model-server"}
BODY = b'{"model": "m", "prompt": "x"}'
SEEN_S = 30.0
"""How long a change may take to be seen on a busy machine; it takes milliseconds. No watch ends so soon by itself."""


@asynccontextmanager
async def start_servers(count: int) -> AsyncIterator[list[Upstream]]:
    """Model servers with addresses of their own and one port, as Pods of one Deployment have them."""
    async with AsyncExitStack() as stack:
        yield await _start_on_one_port(stack, count)


async def _start_on_one_port(stack: AsyncExitStack, count: int) -> list[Upstream]:
    for _ in range(20):
        network = f"127.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
        servers = [Upstream(f"server-{number}", f"{network}.{number + 1}") for number in range(count)]
        started: list[Upstream] = []
        try:
            for server in servers:
                server.port = servers[0].port
                await server.start()
                started.append(server)
        except OSError:  # another program has that port on all addresses
            for server in started:
                await server.stop()
            continue
        for server in started:
            stack.push_async_callback(server.stop)
        return started
    raise AssertionError("expected a port that is free on a few loopback addresses, found none")


async def create_pods(cluster: RealCluster, servers: Sequence[Upstream], **options: Any) -> None:
    """A Pod for each server, named as the server; options as `Kubelet.create` takes them."""
    for server in servers:
        await cluster.pods.create(server.name, server.host, **{"labels": LABELS, "ports": (server.port,), **options})


def pool_arguments(cluster: RealCluster, *arguments: str, user: str | None = None) -> list[str]:
    """What `epp serve` needs to find the pool."""
    kubeconfig = cluster.kubeconfig() if user is None else cluster.kubeconfig(user)
    return ["--pool-name", POOL, "--kubeconfig", str(kubeconfig), *arguments]


@asynccontextmanager
async def start_pool(
    cluster: RealCluster, count: int, *arguments: str, pods: Mapping[str, Any] | None = None, **envoy_options: Any
) -> AsyncIterator[Setting]:
    """The whole: `count` Pods, their InferencePool, an endpoint picker and Envoy."""
    async with start_servers(count) as servers:
        await cluster.create_pool(POOL, LABELS, [servers[0].port])
        await create_pods(cluster, servers, **(pods or {}))
        async with (
            EppProcess(*pool_arguments(cluster, *arguments)) as epp,
            start_envoy(epp.grpc.port, **envoy_options) as envoy,
        ):
            yield Setting(envoy, epp, servers)


async def until_state(epp: EppProcess, server: Upstream, state: str | None) -> None:
    """Wait until the picker takes a server for `ready`, `draining` or `unready`; None: until it does not know it."""

    async def has_it() -> bool:
        return (await epp.pool()).get(server.endpoint, {}).get("state") == state

    await wait_until(has_it, f"{server.name} to be {state or 'gone'}", SEEN_S)


async def until_ready(epp: EppProcess, servers: Sequence[Upstream], timeout_s: float = SEEN_S) -> None:
    """Wait until exactly these servers are ready."""

    async def are_ready() -> bool:
        return await ready(epp) == {server.endpoint for server in servers}

    await wait_until(are_ready, f"{len(servers)} ready endpoints", timeout_s)


async def ready(epp: EppProcess) -> set[str]:
    """Addresses of the ready endpoints."""
    return {address for address, each in (await epp.pool()).items() if each["state"] == "ready"}


async def until_event(cluster: RealCluster, matches: Callable[[dict[str, Any]], bool], what: str) -> None:
    """Wait for an Event in the cluster's namespace."""

    async def is_there() -> bool:
        events = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/events")
        return any(matches(event) for event in events["items"])

    await wait_until(is_there, what, 4 * PATIENCE_S)


class Traffic:
    """Requests one after another on several connections, until told to stop.

    Attributes:
        statuses: How often each status came.
    """

    def __init__(self, scene: Setting) -> None:
        self._scene = scene
        self._stop = asyncio.Event()
        self.statuses: Counter[int] = Counter()

    async def client(self) -> None:
        while not self._stop.is_set():
            answer = await self._scene.fetch(body=BODY)
            self.statuses[answer.status if not answer.cut else 0] += 1
            await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        """Wait for so many further good answers."""
        aim = self.statuses[200] + count
        await wait_until(lambda: self.statuses[200] >= aim, f"{count} further answers", 4 * PATIENCE_S)

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def traffic(scene: Setting, clients: int = 4) -> AsyncIterator[Traffic]:
    """Requests while the block runs; all of them have ended when it is left."""
    made = Traffic(scene)
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(made.client())
        try:
            yield made
        finally:
            made.stop()
