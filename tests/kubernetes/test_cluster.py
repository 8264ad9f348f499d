"""The real API server does what the other tests count on."""

import asyncio
from contextlib import aclosing
from functools import partial

import pytest

from tests.flows.epp_process import wait_until
from tests.kubernetes.api_client import ApiStatusError, path_of
from tests.kubernetes.cluster import POOL_GROUPS, RealCluster
from tests.kubernetes.conftest import EPP_USER
from tests.kubernetes.manifest import Manifest
from tests.kubernetes.programs import require_kubectl

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


async def test_a_pod_marked_for_deletion_stays_ready_until_the_kubelet_removes_it(cluster: RealCluster) -> None:
    await cluster.pods.create("a", "127.0.1.1", labels={"app": "server"})

    marked = await cluster.pods.mark_for_deletion("a", grace_s=30)

    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert is_ready(await cluster.get(cluster.pods.path("a")))
    await cluster.pods.remove("a")
    assert await cluster.list(cluster.pods.path()) == []


async def test_a_pod_with_a_finalizer_outlives_its_removal(cluster: RealCluster) -> None:
    await cluster.pods.create("a", "127.0.1.1", finalizers=["example.org/wait"])

    await cluster.pods.remove("a")

    assert (await cluster.get(cluster.pods.path("a")))["metadata"]["deletionTimestamp"]
    await cluster.pods.remove_finalizers("a")
    assert await cluster.list(cluster.pods.path()) == []


async def test_the_test_plays_the_kubelet(cluster: RealCluster) -> None:
    pods = cluster.pods
    no_address = await pods.create("late")
    assert (no_address["status"]["phase"], no_address["status"].get("podIP")) == ("Pending", None)

    pod = await pods.create("a", ["127.0.1.1", "fd00::1"], labels={"app": "server"}, ports=(8000, 8001))
    assert [entry["ip"] for entry in pod["status"]["podIPs"]] == ["127.0.1.1", "fd00::1"]
    assert is_ready(pod)
    assert not is_ready(await pods.set_ready("a", False, message="not loaded"))
    assert (await pods.restart_container("a", restarts=2))["status"]["containerStatuses"][0]["restartCount"] == 2
    assert (await pods.set_ip("a", "127.0.1.9"))["status"]["podIPs"] == [{"ip": "127.0.1.9"}]
    assert "podIP" not in (await pods.set_ip("a"))["status"]
    assert (await pods.set_labels("a", app=None, other="yes"))["metadata"]["labels"] == {"other": "yes"}
    assert (await pods.annotate("a", {"example.org/x": "1"}))["metadata"]["annotations"] == {"example.org/x": "1"}
    assert (await pods.set_phase("a", "Failed"))["status"]["phase"] == "Failed"


@pytest.mark.parametrize(("version", "ports"), [("v1", [8000, 8001]), ("v1alpha2", [8000])])
async def test_both_versions_of_inference_pools_are_there(cluster: RealCluster, version: str, ports: list[int]) -> None:
    await cluster.create_pool("pool", {"app": "server"}, ports, version=version)
    await cluster.update_pool("pool", selector={"app": "other"}, version=version)
    await cluster.update_pool("pool", ports=[9000], version=version)

    spec = (await cluster.get(cluster.pool_path("pool", version=version)))["spec"]
    assert (spec["selector"], spec.get("targetPorts", spec.get("targetPortNumber"))) == (
        ({"matchLabels": {"app": "other"}}, [{"number": 9000}]) if version == "v1" else ({"app": "other"}, 9000)
    )
    await cluster.delete_pool("pool", version=version)
    assert await cluster.list(cluster.pool_path(version=version)) == []


@pytest.mark.parametrize("group", [POOL_GROUPS["v1alpha2"], "llm-d.ai"])
async def test_objectives_and_rewrites_of_both_groups_are_there(cluster: RealCluster, group: str) -> None:
    pool = {"name": "pool"}
    rules = [{"matches": [{"model": {"value": "a"}}], "targets": [{"modelRewrite": "b", "weight": 1}]}]
    objective = cluster_object(group, "InferenceObjective", {"poolRef": pool, "priority": 7})
    rewrite = cluster_object(group, "InferenceModelRewrite", {"poolRef": pool, "rules": rules})

    assert (await cluster.apply(objective, namespace=cluster.namespace))["spec"]["priority"] == 7
    found = await cluster.apply(rewrite, namespace=cluster.namespace)
    assert found["spec"]["rules"] == [{**rules[0], "matches": [{"model": {"type": "Exact", "value": "a"}}]}]


async def test_a_dry_run_keeps_nothing_and_refuses_what_is_unknown(cluster: RealCluster) -> None:
    account: Manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "epp"}}

    applied = await cluster.apply(account, namespace=cluster.namespace, dry_run=True)

    assert applied["metadata"]["namespace"] == cluster.namespace
    assert await cluster.list(path_of("v1", "serviceaccounts", cluster.namespace)) == []
    with pytest.raises(ApiStatusError, match="nonsense"):
        await cluster.apply({**account, "nonsense": 1}, namespace=cluster.namespace, dry_run=True)


async def test_a_user_without_a_role_is_denied_and_a_role_allows_what_it_says(cluster: RealCluster) -> None:
    user = cluster.as_user(EPP_USER)
    account = cluster.as_bearer(await cluster.service_account_token("epp"))
    for denied in (user, account):
        with pytest.raises(ApiStatusError, match="cannot list resource") as refusal:
            await denied.list(cluster.pods.path())
        assert (refusal.value.status, refusal.value.reason) == (403, "Forbidden")

    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    subjects: list[Manifest] = [
        {"kind": "User", "name": EPP_USER, "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "epp", "namespace": cluster.namespace},
    ]
    rbac = "rbac.authorization.k8s.io/v1"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    await cluster.create(path_of(rbac, "roles", cluster.namespace), {"metadata": {"name": "reader"}, "rules": rules})
    await cluster.create(
        path_of(rbac, "rolebindings", cluster.namespace),
        {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": subjects},
    )

    for allowed in (user, account):
        # The API server learns of a role by a watch of its own.
        await wait_until(partial(allowed.can, "list", "", "pods", cluster.namespace), "the role to be in force")
        assert await allowed.list(cluster.pods.path()) == []
        assert not await allowed.can("watch", "", "pods", cluster.namespace)


async def test_a_kubeconfig_lets_kubectl_in(cluster: RealCluster) -> None:
    await cluster.pods.create("a", "127.0.1.1")
    process = await asyncio.create_subprocess_exec(
        require_kubectl(), "--kubeconfig", cluster.kubeconfig(), "get", "pods", "-o", "name", stdout=asyncio.subprocess.PIPE
    )  # fmt: skip

    said, _ = await process.communicate()

    assert (process.returncode, said) == (0, b"pod/a\n")


async def test_a_watch_brings_events(cluster: RealCluster) -> None:
    start = (await cluster.get(cluster.pods.path()))["metadata"]["resourceVersion"]
    async with aclosing(cluster.watch(cluster.pods.path(), start)) as events:
        await cluster.pods.create("a", "127.0.1.1")
        assert [(await anext(events))["type"] for _ in range(2)] == ["ADDED", "MODIFIED"]
        await cluster.pods.remove("a")
        assert [(await anext(events))["type"] for _ in range(2)] == ["MODIFIED", "DELETED"]  # marked first, at once removed


async def test_an_etcd_compaction_ends_watches_and_pages_from_before_with_410() -> None:
    async with RealCluster(watch_cache=False) as cluster:
        for name in ("a", "b"):
            await cluster.pods.create(name, "127.0.1.1")
        page = (await cluster.get(cluster.pods.path(), limit="1"))["metadata"]
        await cluster.pods.set_ready("a", False)

        await cluster.compact_etcd()

        async with aclosing(cluster.watch(cluster.pods.path(), page["resourceVersion"])) as events:
            event = await anext(events)
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        with pytest.raises(ApiStatusError) as refusal:
            await cluster.get(cluster.pods.path(), limit="1", **{"continue": page["continue"]})
        assert (refusal.value.status, refusal.value.reason) == (410, "Expired")


async def test_objects_outlive_a_crash_of_the_api_server_and_silence_is_silent() -> None:
    async with RealCluster() as cluster:
        created = await cluster.pods.create("a", "127.0.1.1")

        cluster.stop_api_server()
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await cluster.list(cluster.pods.path())
        await cluster.start_api_server()

        assert (await cluster.get(cluster.pods.path("a")))["metadata"]["uid"] == created["metadata"]["uid"]
        cluster.pause()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await cluster.list(cluster.pods.path())
        cluster.resume()
        assert len(await cluster.list(cluster.pods.path())) == 1


async def test_custom_resource_definitions_may_come_later() -> None:
    async with RealCluster(with_crds=False) as cluster:
        with pytest.raises(ApiStatusError, match="found 404"):
            await cluster.list(cluster.pool_path())

        await cluster.create_crds()

        assert await cluster.list(cluster.pool_path()) == []


async def test_a_failure_shows_what_the_processes_wrote_and_leaves_nothing() -> None:
    cluster = RealCluster()
    with pytest.raises(AssertionError, match="wrong") as failure:
        async with cluster:
            raise AssertionError("wrong")

    assert any("kube-apiserver wrote: " in note and "etcd wrote: " in note for note in failure.value.__notes__)
    assert not cluster.control_plane.folder.exists()


def is_ready(pod: Manifest) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"]["conditions"])


def cluster_object(group: str, kind: str, spec: Manifest) -> Manifest:
    return {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
