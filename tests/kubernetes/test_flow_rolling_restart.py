"""Two replicas of the picker are replaced one after the other, as a Deployment does it, and no request fails."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from tests.flows.epp_process import EppProcess, wait_until
from tests.flows.harness import Setting, patient_health_check, start_envoy
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import LABELS, POOL, create_pods, pool_arguments, start_servers, traffic, until_state
from tests.kubernetes.server_process import unused_port

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


@asynccontextmanager
async def start_replica(arguments: list[str], port: int) -> AsyncIterator[EppProcess]:
    """A picker on a given port, since Envoy knows the replicas by their addresses."""
    async with EppProcess(*arguments, "--grpc-port", str(port)) as epp:
        yield epp


async def test_a_rolling_restart_of_the_pickers_fails_no_request(cluster: RealCluster) -> None:
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(start_servers(3))
        await cluster.create_pool(POOL, LABELS, [servers[0].port])
        await create_pods(cluster, servers)
        arguments = pool_arguments(cluster, "--ha-enable-leader-election")
        ports = [unused_port() for _ in range(2)]  # which no connection of somebody takes between a replica and the next
        replicas = [await stack.enter_async_context(start_replica(arguments, port)) for port in ports]
        envoy = await stack.enter_async_context(start_envoy(*ports, adapt=patient_health_check))
        scene = Setting(envoy, replicas[0], servers)
        async with traffic(scene, 8) as sent:
            await sent.more(100)
            for number, port in enumerate(ports):
                leaving = replicas[number]
                leaving.terminate()
                assert await leaving.wait() == 0
                replicas[number] = await stack.enter_async_context(start_replica(arguments, port))
                await sent.more(200)
                await wait_until(partial(replicas[number].metric, "llm_d_epp_request_total"), "the new one to take part", 120)
            # A pod goes while the pickers are new.
            await cluster.pods.mark_for_deletion(servers[0].name)
            for replica in replicas:
                await until_state(replica, servers[0], "draining")
        for replica in replicas:
            await replica.wait_idle()

    assert sent.statuses.keys() == {200}
