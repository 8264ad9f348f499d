"""The API server goes, falls silent, forgets or refuses; the picker goes on with what it knows, and catches up."""

import time

import pytest

from tests.flows.epp_process import EppProcess, wait_until
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import (
    BODY,
    LABELS,
    POOL,
    create_pods,
    pool_arguments,
    start_pool,
    start_servers,
    traffic,
    until_ready,
)

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]
AWAY_S = 30.0


async def age_s(epp: EppProcess, resource: str = "pods") -> float:
    return await epp.metric("epp_kubernetes_state_age_seconds", resource=resource) or 0.0


async def test_while_the_api_server_is_away_for_30_s_nothing_is_lost() -> None:
    """The last state stays, its age is shown, and what happened meanwhile is seen when the server is back."""
    async with RealCluster() as cluster, start_pool(cluster, 3) as scene:
        leaving, *staying = scene.upstreams
        async with traffic(scene) as sent:
            cluster.stop_api_server()
            began_s = time.monotonic()
            await sent.more(100)
            await wait_until(lambda: time.monotonic() - began_s >= AWAY_S, "the time that it is away", 4 * AWAY_S)
            assert await age_s(scene.epp) >= AWAY_S
            assert (await scene.epp.pool()).keys() == {server.endpoint for server in scene.upstreams}
            assert (await scene.epp.get("/readyz"))[0] == 200
            warnings = [record for record in scene.epp.log_records("warning") if record["logger"] == "discovery"]
            await cluster.start_api_server()
            await cluster.pods.remove(leaving.name)
            await until_ready(scene.epp, staying, 120)
            assert await age_s(scene.epp) < time.monotonic() - began_s - AWAY_S, "it was proved current after the time away"

    assert sent.statuses.keys() == {200}
    # One line for each of the kinds that are followed and each of list and watch, not one an attempt.
    assert 1 <= len(warnings) <= 12, warnings
    assert scene.epp.log_records("error") == []


async def test_a_server_that_falls_silent_is_left_for_a_new_connection() -> None:
    """Connections stay open and nothing comes any more; no error tells it."""
    async with RealCluster() as cluster, start_pool(cluster, 2) as scene:
        leaving, *staying = scene.upstreams
        cluster.pause()
        try:
            assert (await scene.fetch(body=BODY)).status == 200
        finally:
            cluster.resume()
        await cluster.pods.remove(leaving.name)
        await until_ready(scene.epp, staying, 120)


async def test_after_a_compaction_the_picture_is_still_right() -> None:
    async with RealCluster(watch_cache=False) as cluster, start_pool(cluster, 3) as scene:
        for number in range(3):
            for _ in range(20):
                await cluster.pods.set_labels(scene.upstreams[1].name, spin=str(number))
            await cluster.compact_etcd()
            cluster.stop_api_server()
            await cluster.start_api_server()
        await cluster.pods.remove(scene.upstreams[0].name)
        await until_ready(scene.epp, scene.upstreams[1:], 120)
        assert scene.epp.log_records("error") == []


async def test_without_a_role_it_says_so_once_and_serves_as_soon_as_it_has_one(cluster: RealCluster) -> None:
    """403: one clear line for each kind, NOT_SERVING until it works."""
    async with start_servers(1) as servers:
        await cluster.create_pool(POOL, LABELS, [servers[0].port])
        await create_pods(cluster, servers)
        async with EppProcess(*pool_arguments(cluster, user="epp-user"), ready=False) as epp:
            await wait_until(lambda: len(_lines(epp, "inferencepools in namespace")) > 0, "a line on the InferencePool")
            assert (await epp.get("/readyz"))[0] == 503
            (line,) = _lines(epp, "inferencepools in namespace")
            assert "found 403 " in line
            assert "cannot list" in line
            await allow_everything(cluster, "epp-user")
            await epp.wait_ready(120)
            await until_ready(epp, servers)
            assert len(_lines(epp, "inferencepools in namespace")) == 1
            assert epp.log_records("error") == []


async def test_a_wrong_token_is_told_and_nothing_is_served(cluster: RealCluster) -> None:
    """401."""
    kubeconfig = cluster.kubeconfig(token="nobody-has-it")
    arguments = ["--pool-name", POOL, "--kubeconfig", str(kubeconfig), "--pool-namespace", cluster.namespace]
    async with EppProcess(*arguments, ready=False) as epp:
        await wait_until(lambda: len(_lines(epp, "found 401 ")) > 0, "a line on the credentials")
        assert (await epp.get("/readyz"))[0] == 503
        assert "nobody-has-it" not in epp.log_text()
        epp.terminate()
        assert await epp.wait() == 0


async def test_without_the_pool_it_waits_and_says_for_what(cluster: RealCluster) -> None:
    async with start_servers(1) as servers, EppProcess(*pool_arguments(cluster), ready=False) as epp:
        await wait_until(lambda: len(_lines(epp, "expected it to exist, found none")) == 1, "a line on the missing pool")
        assert (await epp.get("/readyz"))[0] == 503
        await create_pods(cluster, servers)
        await cluster.create_pool(POOL, LABELS, [servers[0].port])
        await epp.wait_ready()
        await until_ready(epp, servers)


async def test_an_older_pool_and_a_selector_work_too(cluster: RealCluster) -> None:
    async with start_servers(2) as servers:
        port = servers[0].port
        await create_pods(cluster, servers)
        await cluster.create_pool(POOL, LABELS, [port], version="v1alpha2")
        older = pool_arguments(cluster, "--pool-group", "inference.networking.x-k8s.io")
        kubeconfig = ["--kubeconfig", str(cluster.kubeconfig())]
        selector = ["--endpoint-selector", "app in (model-server, x)", "--endpoint-target-ports", str(port), *kubeconfig]
        async with EppProcess(*older) as of_pool, EppProcess(*selector) as of_selector:
            await until_ready(of_pool, servers)
            await until_ready(of_selector, servers)


def _lines(epp: EppProcess, part: str) -> list[str]:
    return [str(record) for record in epp.log_records("warning") if part in str(record)]


async def allow_everything(cluster: RealCluster, user: str) -> None:
    """Give a user every right in the namespace."""
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await cluster.create(f"{where}/roles", {"metadata": {"name": user}, "rules": rules})
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    await cluster.create(f"{where}/rolebindings", binding)
