"""What else stands in the API server: objectives, rewrites, Events on the pool, and the Lease of the leader."""

import time
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from tests.flows.epp_process import EppProcess, wait_until
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import (
    LABELS,
    POOL,
    create_pods,
    pool_arguments,
    start_pool,
    start_servers,
    until_event,
    until_ready,
)

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]
OLDER = "inference.networking.x-k8s.io"
NEWER = "llm-d.ai"
POOL_REF = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": POOL}


async def create_extension(cluster: RealCluster, group: str, plural: str, kind: str, name: str, spec: dict[str, Any]) -> str:
    """An object of v1alpha2 that refers to the pool; its path."""
    folder = f"/apis/{group}/v1alpha2/namespaces/{cluster.namespace}/{plural}"
    body = {
        "apiVersion": f"{group}/v1alpha2",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"poolRef": POOL_REF, **spec},
    }
    await cluster.create(folder, body)
    return f"{folder}/{name}"


async def create_rewrite(cluster: RealCluster, group: str, name: str, model: str | None, *targets: str) -> str:
    rule: dict[str, Any] = {"targets": [{"modelRewrite": target, "weight": 1} for target in targets]}
    if model is not None:
        rule["matches"] = [{"model": {"type": "Exact", "value": model}}]
    return await create_extension(cluster, group, "inferencemodelrewrites", "InferenceModelRewrite", name, {"rules": [rule]})


@pytest.mark.parametrize("group", [OLDER, NEWER])
async def test_a_rewrite_changes_the_model_and_nothing_else_and_ends_with_its_object(cluster: RealCluster, group: str) -> None:
    """Field reports 19 and 24: only that JSON value changes, and the length is right."""
    body = b'{ "big": 12345678901234567890,"model" :  "small", "prompt": "\\u00e9 \\"model\\": \\"small\\"" }'
    async with start_pool(cluster, 1) as scene:
        server = scene.upstreams[0]
        assert (await scene.fetch(body=body)).status == 200
        assert server.received[-1].body == body
        path = await create_rewrite(cluster, group, "longer", "small", "a-much-longer-name")

        async def is_rewritten() -> bool:
            assert (await scene.fetch(body=body)).status == 200
            return server.received[-1].body != body

        await wait_until(is_rewritten, "the rule to be in force")
        assert server.received[-1].body == body.replace(b'"model" :  "small"', b'"model" :  "a-much-longer-name"', 1)
        assert (
            await scene.epp.metric("inference_extension_model_rewrite_decisions_total", target_model="a-much-longer-name")
        ) == 1
        other = body.replace(b'"small", "prompt', b'"other", "prompt')
        assert (await scene.fetch(body=other)).status == 200
        assert server.received[-1].body == other
        await cluster.delete(path)

        async def is_not_rewritten() -> bool:
            assert (await scene.fetch(body=body)).status == 200
            return server.received[-1].body == body

        await wait_until(is_not_rewritten, "the rule to be gone")


async def test_exact_beats_generic_and_the_oldest_wins(cluster: RealCluster) -> None:
    async with start_pool(cluster, 1) as scene:
        server = scene.upstreams[0]
        await create_rewrite(cluster, OLDER, "any", None, "generic")
        await until_the_next_second()
        await create_rewrite(cluster, NEWER, "first", "m", "exact")
        await until_the_next_second()
        await create_rewrite(cluster, OLDER, "a-later-one", "m", "too-late")

        async def model_of(asked: str) -> str:
            body = msgspec.json.encode({"model": asked, "prompt": "x"})
            assert (await scene.fetch(body=body)).status == 200
            model: str = msgspec.json.decode(server.received[-1].body)["model"]
            return model

        async def are_in_force() -> bool:
            return [await model_of("m"), await model_of("other")] == ["exact", "generic"]

        await wait_until(are_in_force, "the exact rule for m, the generic one for the rest")
        for _ in range(5):
            assert await are_in_force()


async def until_the_next_second() -> None:
    """The age of objects is told in whole seconds."""
    began = int(time.time())
    await wait_until(lambda: int(time.time()) > began, "another second")


@pytest.mark.parametrize("group", [OLDER, NEWER])
async def test_the_priority_of_the_objective_that_a_request_names_is_known(cluster: RealCluster, group: str) -> None:
    async with start_pool(cluster, 1) as scene:
        await create_extension(cluster, group, "inferenceobjectives", "InferenceObjective", "urgent", {"priority": 7})

        async def has_priority() -> bool:
            headers = [("x-gateway-inference-objective", "urgent")]
            assert (await scene.fetch(body=b'{"model": "m", "prompt": "x"}', headers=headers)).status == 200
            return bool(await scene.epp.metric("inference_objective_request_total", priority="7"))

        await wait_until(has_priority, "a request counted with priority 7")


async def test_a_pod_that_cannot_be_used_shows_in_log_gauge_and_events(cluster: RealCluster) -> None:
    """Field report 8: one warning naming pod and ports, the gauge at 1, and an Event on the pool."""
    async with start_pool(cluster, 1) as scene:
        port = scene.upstreams[0].port
        await cluster.pods.create("odd", "127.9.9.9", labels=LABELS, ports=(8300,))

        async def is_counted() -> bool:
            return await scene.epp.metric("epp_unusable_pods", reason="no_target_port") == 1

        await wait_until(is_counted, "the gauge at 1")
        await until_event(cluster, lambda event: event["reason"] == "UnusablePod", "an Event")
        (line,) = [record for record in scene.epp.log_records("warning") if record["event"] == "a pod cannot be used"]
        assert all(part in line["detail"] for part in ("odd", "8300", str(port)))
        await until_ready(scene.epp, scene.upstreams)
        events = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/events")
        (event,) = events["items"]
        pool = await cluster.get(cluster.pool_path(POOL))
        assert event["involvedObject"]["uid"] == pool["metadata"]["uid"]
        assert event["message"] == line["detail"]
        await cluster.pods.remove("odd")

        async def is_not_counted() -> bool:
            return await scene.epp.metric("epp_unusable_pods", reason="no_target_port") == 0

        await wait_until(is_not_counted, "the gauge at 0")


async def test_the_lease_names_one_leader_and_is_handed_over_at_once(cluster: RealCluster) -> None:
    async with start_servers(1) as servers:
        await cluster.create_pool(POOL, LABELS, [servers[0].port])
        await create_pods(cluster, servers)
        arguments = pool_arguments(cluster, "--ha-enable-leader-election", "--drain-timeout", "5s")
        async with EppProcess(*arguments) as one:
            await wait_until(lambda: leads(one), "the first to lead")
            async with EppProcess(*arguments) as other:
                assert await other.metric("epp_leader") == 0
                assert await other.pool() != {}, "it serves without leading"
                leases = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases"
                lease = await cluster.get(f"{leases}/epp-{POOL}")
                first = lease["spec"]["holderIdentity"]
                assert first
                async with aclosing(cluster.watch(leases, lease["metadata"]["resourceVersion"])) as changes:
                    one.terminate()
                    holders = [first]
                    while holders[-1] in (first, ""):
                        holder = (await anext(changes))["object"]["spec"].get("holderIdentity", "")
                        if holder != holders[-1]:
                            holders.append(holder)
                # Nobody waited for the end of the time for which it was held.
                assert holders[:-1] == [first, ""]
                await wait_until(lambda: leads(other), "the second to lead")
                assert await one.wait() == 0
                assert (await cluster.get(f"{leases}/epp-{POOL}"))["spec"]["leaseTransitions"] == 1


async def leads(epp: EppProcess) -> bool:
    return await epp.metric("epp_leader") == 1
