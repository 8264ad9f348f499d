"""Pods come, change and go; the picker's endpoints are those of the API server, and no request is lost to the change."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.flows.epp_process import EppProcess, wait_until
from tests.flows.harness import Setting
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import (
    LABELS,
    POOL,
    create_pods,
    pool_arguments,
    ready,
    start_pool,
    start_servers,
    until_ready,
    until_state,
)

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]
BODY = b'{"model": "m", "prompt": "x", "stream": true}'


async def test_a_pod_with_a_deletion_mark_gets_nothing_new_although_it_is_ready(cluster: RealCluster) -> None:
    """Field reports 1 and 14: nothing new from the first sight of the mark; what runs there ends well."""
    async with start_pool(cluster, 3) as scene:
        leaving = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(6, "/held", body=BODY) as streams:
                assert scene.shares() == [2, 2, 2]
                await cluster.pods.mark_for_deletion(leaving.name)
                await until_state(scene.epp, leaving, "draining")
                entry = (await scene.epp.pool())[leaving.endpoint]
                async with scene.at_once(20, "/held", body=BODY) as later:
                    assert scene.shares() == [2, 12, 12]
                    scene.open_gates()
                    answers = await asyncio.gather(*streams, *later)
        before = len(leaving.received)
        for _ in range(100):
            assert (await scene.fetch(body=BODY)).status == 200
        assert len(leaving.received) == before
        await scene.epp.wait_idle()

    assert entry["reason"] == "the pod is being deleted"
    assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)


async def test_when_a_pod_is_gone_its_cut_streams_are_no_longer_counted(cluster: RealCluster) -> None:
    """Field report 14: a server that cuts what it has when it is told to end; only streams from before are hit."""
    async with start_pool(cluster, 2) as scene:
        leaving = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(4, "/held", body=BODY) as streams:
                await cluster.pods.mark_for_deletion(leaving.name)
                await until_state(scene.epp, leaving, "draining")
                await leaving.stop()
                await cluster.pods.remove(leaving.name)
                scene.open_gates()
                answers = await asyncio.gather(*streams)
        assert sum(answer.cut or answer.status != 200 for answer in answers) == 2
        await until_state(scene.epp, leaving, None)
        await scene.epp.wait_idle()
        for _ in range(20):
            assert (await scene.fetch(body=BODY)).status == 200


async def test_a_pod_that_is_not_ready_or_loses_its_label_is_out_and_comes_back(cluster: RealCluster) -> None:
    """Field report 2."""
    async with start_pool(cluster, 3) as scene:
        unready, relabelled, steady = scene.upstreams
        await cluster.pods.set_ready(unready.name, False, message="still loading the model")
        await cluster.pods.set_labels(relabelled.name, app="other")
        await until_ready(scene.epp, [steady])
        assert "still loading the model" in (await scene.epp.pool())[unready.endpoint]["reason"]
        for _ in range(30):
            assert (await scene.fetch(body=BODY)).status == 200
        assert [len(server.received) for server in scene.upstreams] == [0, 0, 30]
        await cluster.pods.set_ready(unready.name, True)
        await cluster.pods.set_labels(relabelled.name, app="model-server")
        await until_ready(scene.epp, scene.upstreams)

        async def have_all_had_some() -> bool:
            assert (await scene.fetch(body=BODY)).status == 200
            return all(server.received for server in scene.upstreams)

        await wait_until(have_all_had_some, "requests at all three, after the ramp-up of the two", 60)


async def test_readiness_that_flaps_leaves_no_count_behind(cluster: RealCluster) -> None:
    async with start_pool(cluster, 2) as scene:
        flapping = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(4, "/held", body=BODY) as streams:
                for _ in range(10):
                    await cluster.pods.set_ready(flapping.name, False)
                    await cluster.pods.set_ready(flapping.name, True)
                await until_ready(scene.epp, scene.upstreams)
                assert await scene.epp.in_flight() == 4
                scene.open_gates()
                await asyncio.gather(*streams)
        await scene.epp.wait_idle()


async def test_a_new_pod_at_the_address_of_an_old_one_inherits_nothing(cluster: RealCluster) -> None:
    """Field report 10: identity is the pod's uid and its restarts, not its address."""
    async with start_pool(cluster, 2) as scene:
        server = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(4, "/held", body=BODY) as streams:
                await cluster.pods.remove(server.name)
                await cluster.pods.create("other", server.host, labels=LABELS, ports=(server.port,))

                async def is_new() -> bool:
                    known = await _entries(scene, server.endpoint)
                    return [(each["name"], each["in_flight_requests"]) for each in known if not each["leaving"]] == [
                        ("other-rank-0", 0)
                    ]

                await wait_until(is_new, "the new pod with nothing on it")
                old = [each for each in await _entries(scene, server.endpoint) if each["leaving"]]
                assert [each["in_flight_requests"] for each in old] == [2]
                await cluster.pods.restart_container("other", restarts=1)
                scene.open_gates()
                await asyncio.gather(*streams)
        await scene.epp.wait_idle()
        await until_ready(scene.epp, scene.upstreams)


async def _entries(scene: Setting, address: str) -> list[dict[str, Any]]:
    """All that the picker knows of an address: a new pod, and an old one whose streams still run."""
    _, body = await scene.epp.get("/api/v1/pool")
    return [each for each in msgspec.json.decode(body)["endpoints"] if each["endpoint"] == address]


async def test_a_failed_pod_is_no_endpoint_though_its_record_stays(cluster: RealCluster) -> None:
    """Field report 10: its address may be another's by now."""
    async with start_pool(cluster, 2) as scene:
        await cluster.pods.set_phase(scene.upstreams[0].name, "Failed")
        await until_state(scene.epp, scene.upstreams[0], None)
        await until_ready(scene.epp, scene.upstreams[1:])


async def test_after_200_deletions_and_additions_of_one_name_it_is_an_endpoint(cluster: RealCluster) -> None:
    """Field report 9."""
    async with start_pool(cluster, 2) as scene:
        server = scene.upstreams[0]
        for _ in range(200):
            await cluster.pods.remove(server.name)
            await create_pods(cluster, [server])
        await until_ready(scene.epp, scene.upstreams)
        hits = server.metrics_hits
        await wait_until(lambda: server.metrics_hits > hits + 2, "scrapes of it")


async def test_the_pool_goes_to_zero_and_back(cluster: RealCluster) -> None:
    async with start_pool(cluster, 2) as scene:
        for server in scene.upstreams:
            await cluster.pods.remove(server.name)
        await until_ready(scene.epp, [])
        answer = await scene.fetch(body=BODY)
        assert (answer.status, answer.head.get("x-epp-reason")) == (503, "no_endpoints")
        await create_pods(cluster, scene.upstreams)
        await until_ready(scene.epp, scene.upstreams)
        assert (await scene.fetch(body=BODY)).status == 200


async def test_ports_that_the_pool_no_longer_names_are_gone_and_not_scraped(cluster: RealCluster) -> None:
    """Field reports 6 and 7: each port of a pod is an endpoint, as long as the pool names it."""
    async with start_pool(cluster, 2) as scene:
        port = scene.upstreams[0].port
        other = port - 1
        await cluster.update_pool(POOL, ports=[port, other])
        for server in scene.upstreams:
            await cluster.pods.remove(server.name)
            await cluster.pods.create(server.name, server.host, labels=LABELS, ports=(port, other))
        both = {f"{server.host}:{each}" for server in scene.upstreams for each in (port, other)}

        async def has_both() -> bool:
            return await ready(scene.epp) == both

        await wait_until(has_both, "two endpoints of each pod")
        names = {each["name"] for each in (await scene.epp.pool()).values()}
        assert names == {f"server-{number}-rank-{rank}" for number in range(2) for rank in range(2)}
        await cluster.update_pool(POOL, ports=[port])
        await until_ready(scene.epp, scene.upstreams)
        for _ in range(20):
            assert (await scene.fetch(body=BODY)).status == 200


async def test_a_new_selector_takes_other_pods(cluster: RealCluster) -> None:
    async with start_pool(cluster, 2) as scene:
        blue, green = scene.upstreams
        await cluster.pods.set_labels(green.name, app="green")
        await until_ready(scene.epp, [blue])
        await cluster.update_pool(POOL, selector={"app": "green"})
        await until_ready(scene.epp, [green])
        await cluster.update_pool(POOL, selector=dict(LABELS))
        await until_ready(scene.epp, [blue])
        assert (await scene.fetch(body=BODY)).status == 200


async def test_a_pool_that_is_deleted_and_created_again(cluster: RealCluster) -> None:
    async with start_pool(cluster, 2) as scene:
        await cluster.delete_pool(POOL)
        await until_ready(scene.epp, [])
        assert (await scene.fetch(body=BODY)).status == 503
        await cluster.create_pool(POOL, LABELS, [scene.upstreams[0].port])
        await until_ready(scene.epp, scene.upstreams)
        assert (await scene.fetch(body=BODY)).status == 200


async def test_an_object_nested_as_deep_as_the_api_server_allows_hurts_nobody(cluster: RealCluster) -> None:
    """Whoever may create a pod could else end every replica."""
    nested = "{}"
    for _ in range(1500):
        nested = f'{{"f:a":{nested}}}'
    async with start_pool(cluster, 2) as scene:
        name = scene.upstreams[0].name
        fields = {
            "manager": "x",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": msgspec.Raw(nested.encode()),
        }
        changes = {"metadata": {"managedFields": [fields], "labels": {"deep": "yes"}}}
        await cluster.merge_unread(cluster.pods.path(name), changes)

        async def is_seen() -> bool:
            return bool((await scene.epp.pool())[scene.upstreams[0].endpoint]["labels"].get("deep") == "yes")

        await wait_until(is_seen, "the pod with its new label")
        async with EppProcess(*pool_arguments(cluster)) as another:
            await until_ready(another, scene.upstreams)
        assert (await scene.fetch(body=BODY)).status == 200


async def test_a_selector_too_long_to_ask_for_is_told_and_ends_nothing(cluster: RealCluster) -> None:
    async with start_servers(1) as servers:
        labels = {f"{'a' * 60}.{'b' * 60}.{'c' * 60}.example.com/k{number}": "v" * 63 for number in range(300)}
        await cluster.create_pool(POOL, labels, [servers[0].port], version="v1alpha2")
        arguments = pool_arguments(cluster, "--pool-group", "inference.networking.x-k8s.io")
        async with EppProcess(*arguments, ready=False) as epp:
            await wait_until(lambda: "pods in namespace" in str(epp.log_records("warning")), "a line on the pods")
            await cluster.delete_pool(POOL, version="v1alpha2")
            await cluster.create_pool(POOL, LABELS, [servers[0].port], version="v1alpha2")
            await create_pods(cluster, servers)
            await until_ready(epp, servers)
