"""Two replicas of the picker see one deletion mark, each by itself; nobody tells either of them."""

import asyncio

import pytest

from tests.flows.epp_process import EppProcess
from tests.flows.harness import Setting, start_envoy
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import LABELS, POOL, create_pods, pool_arguments, start_servers, until_ready, until_state

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]
BODY = b'{"model": "m", "prompt": "x", "stream": true}'


async def test_both_replicas_stop_picking_a_pod_at_its_deletion_mark(cluster: RealCluster) -> None:
    """Field reports 1 and 78: the leader and the standby both pick, and both from what they see themselves."""
    async with start_servers(2) as servers:
        leaving, staying = servers
        await cluster.create_pool(POOL, LABELS, [leaving.port])
        await create_pods(cluster, servers)
        arguments = pool_arguments(cluster, "--ha-enable-leader-election")
        async with (
            EppProcess(*arguments) as first_epp,
            EppProcess(*arguments) as second_epp,
            start_envoy(first_epp.grpc.port) as first_envoy,
            start_envoy(second_epp.grpc.port) as second_envoy,
        ):
            first, second = Setting(first_envoy, first_epp, servers), Setting(second_envoy, second_epp, servers)
            for epp in (first_epp, second_epp):
                await until_ready(epp, servers)
            with first.gates_closed():
                async with first.at_once(2, "/held", body=BODY) as of_first, second.at_once(2, "/held", body=BODY) as of_second:
                    assert first.shares() == [2, 2]
                    await cluster.pods.mark_for_deletion(leaving.name)
                    for epp in (first_epp, second_epp):
                        await until_state(epp, leaving, "draining")
                        assert (await epp.pool())[leaving.endpoint]["in_flight_requests"] == 1
                    async with first.at_once(5, "/held", body=BODY) as more, second.at_once(5, "/held", body=BODY) as others:
                        assert (leaving.active_requests, staying.active_requests) == (2, 12)
                        first.open_gates()
                        answers = await asyncio.gather(*of_first, *of_second, *more, *others)
            for epp in (first_epp, second_epp):
                await epp.wait_idle()

    assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)
