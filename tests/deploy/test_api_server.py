"""A real API server accepts all that is in deploy/, and the role is enough for the picker and for nothing else."""

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deploy.choices import CHOICES
from tests.deploy.rendering import (
    CHART,
    DEPLOY,
    EXAMPLES,
    KUSTOMIZE,
    LABELS,
    arguments_of,
    documents,
    kustomize,
    of_kind,
    render,
)
from tests.flows.epp_process import EppProcess, wait_until
from tests.kubernetes.api_client import ApiClient, ApiStatusError, path_of
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.manifest import Manifest
from tests.kubernetes.pods import Kubelet
from tests.kubernetes.programs import require_helm
from tests.tools import module_folder

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

_GATEWAY_API = "sigs.k8s.io/gateway-api@v1.4.1"
_ISTIO = "istio.io/api@v1.28.1"
_LONG_S = 90.0
"""Guards against hanging, on however slow a machine."""
ACCOUNT = "my-pool-epp"
POOLS = "inference.networking.k8s.io"
SELECTOR = {
    "inferenceExtension": {"endpointsServer": {"createInferencePool": False, "endpointSelector": "app=my-model-server"}}
}


def _crds_of_gateways() -> list[Manifest]:
    """Those of the Gateway API and of Istio that the chart and the examples use."""
    folder = module_folder(_GATEWAY_API) / "config" / "crd" / "standard"
    names = ("gatewayclasses", "gateways", "httproutes")
    files = [folder / f"gateway.networking.k8s.io_{name}.yaml" for name in names]
    istio = documents((module_folder(_ISTIO) / "kubernetes" / "customresourcedefinitions.gen.yaml").read_text())
    rules = [each for each in istio if each["metadata"]["name"] == "destinationrules.networking.istio.io"]
    return [*(each for file in files for each in documents(file.read_text())), *rules]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[RealCluster]:
    """One API server for this file, which also knows gateways."""
    # Asked for before the processes start, as it may skip the test.
    definitions = _crds_of_gateways()
    async with RealCluster() as real:
        for definition in definitions:
            definition.pop("status", None)
            await real.create(path_of("apiextensions.k8s.io/v1", "customresourcedefinitions"), definition)
        for definition in definitions:
            served = next(version["name"] for version in definition["spec"]["versions"] if version["served"])
            path = path_of(f"{definition['spec']['group']}/{served}", definition["spec"]["names"]["plural"])

            async def is_there(path: str = path) -> bool:
                try:
                    return bool(await real.get(path, limit="1"))
                except ApiStatusError as error:
                    if error.status != 404:
                        raise
                    return False

            await wait_until(is_there, path, _LONG_S)
        yield real


async def refused(cluster: RealCluster, objects: list[Manifest]) -> list[str]:
    """What the API server says of each object that it does not accept, unknown fields included; nothing is kept."""
    found = []
    for each in objects:
        try:
            await cluster.apply(each, dry_run=True)
        except ApiStatusError as error:
            found.append(f"{each['kind']}: {error.message}")
    return found


@pytest.mark.parametrize("name", CHOICES)
async def test_the_chart_is_accepted(name: str, cluster: RealCluster) -> None:
    assert await refused(cluster, render(CHOICES[name])) == []


@pytest.mark.parametrize("overlay", sorted((KUSTOMIZE / "overlays").iterdir()), ids=lambda overlay: overlay.name)
async def test_an_overlay_is_accepted(overlay: Path, cluster: RealCluster) -> None:
    assert await refused(cluster, kustomize(overlay)) == []


EXAMPLE_FILES = [file for file in sorted(EXAMPLES.glob("*.yaml")) if not file.name.startswith("values-")]


@pytest.mark.parametrize("file", EXAMPLE_FILES, ids=lambda file: file.stem)
async def test_an_example_is_accepted(file: Path, cluster: RealCluster) -> None:
    assert await refused(cluster, documents(file.read_text())) == []


@pytest.mark.parametrize("file", sorted((DEPLOY / "model-servers").glob("*.yaml")), ids=lambda file: file.stem)
async def test_a_model_server_is_accepted(file: Path, cluster: RealCluster) -> None:
    assert await refused(cluster, documents(file.read_text())) == []


async def test_a_wrong_field_would_be_refused(cluster: RealCluster) -> None:
    deployment = copy.deepcopy(of_kind(render(LABELS), "Deployment"))
    deployment["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}

    (sentence,) = await refused(cluster, [deployment])
    assert "readinesProbe" in sentence


async def as_picker(cluster: RealCluster, namespace: str) -> ApiClient:
    """What the cluster is to the picker, once the API server goes by the role that was just applied."""
    picker = cluster.as_bearer(await cluster.service_account_token(ACCOUNT, namespace=namespace))
    await wait_until(lambda: picker.can("list", "", "pods", namespace), "the role to be known", _LONG_S)
    return picker


async def test_the_role_lets_the_picker_do_what_it_does_and_nothing_else(cluster: RealCluster) -> None:
    for each in render(LABELS):
        await cluster.apply(each)
    picker = await as_picker(cluster, "default")

    for group, resource in (
        ("", "pods"),
        ("inference.networking.x-k8s.io", "inferenceobjectives"),
        ("inference.networking.x-k8s.io", "inferencemodelrewrites"),
        ("llm-d.ai", "inferenceobjectives"),
        ("llm-d.ai", "inferencemodelrewrites"),
    ):
        for verb in ("list", "watch"):
            assert await picker.can(verb, group, resource, "default"), (verb, resource)
            assert not await picker.can(verb, group, resource, "kube-system"), (verb, resource)
        for verb in ("get", "create", "update", "patch", "delete"):
            assert not await picker.can(verb, group, resource, "default"), (verb, resource)
    for verb in ("create", "patch"):
        assert await picker.can(verb, "", "events", "default")
    assert await picker.can("create", "coordination.k8s.io", "leases", "default")
    for verb in ("get", "update"):
        assert await picker.can(verb, "coordination.k8s.io", "leases", "default", name="epp-my-pool")
        assert not await picker.can(verb, "coordination.k8s.io", "leases", "default", name="another")
    for resource in ("secrets", "configmaps", "serviceaccounts", "services"):
        assert not await picker.can("list", "", resource, "default")


async def test_the_role_shows_the_picker_its_own_pool_alone(cluster: RealCluster) -> None:
    for each in render(LABELS):
        await cluster.apply(each)
    picker = await as_picker(cluster, "default")
    pools = path_of(f"{POOLS}/v1", "inferencepools", "default")

    (own,) = await picker.list(pools, fieldSelector="metadata.name=my-pool")
    assert own["metadata"]["name"] == "my-pool"
    for selector in ({}, {"fieldSelector": "metadata.name=another"}):
        with pytest.raises(ApiStatusError) as refusal:
            await picker.list(pools, **selector)
        assert refusal.value.status == 403


async def test_the_defaults_of_the_pool_agree_with_what_the_chart_leaves_out(cluster: RealCluster) -> None:
    pool = await cluster.apply(of_kind(render(LABELS), "InferencePool"), dry_run=True)

    assert pool["spec"]["appProtocol"] == "http"
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"


async def helm(cluster: RealCluster, *arguments: str | Path) -> str:
    """What a command of helm prints, in the cluster's namespace."""
    process = await asyncio.create_subprocess_exec(
        *(require_helm(), *arguments, "--kubeconfig", cluster.kubeconfig(), "--namespace", cluster.namespace),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 110)
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_the_chart_is_installed_upgraded_and_removed_without_a_trace(cluster: RealCluster) -> None:
    label = ("--set", "inferencePool.modelServers.matchLabels.app=my-model-server")
    deployment = path_of("apps/v1", "deployments", cluster.namespace, "my-pool-epp")

    notes = await helm(cluster, "install", "my-pool", CHART, *label)
    assert "No requests come before a route leads to InferencePool my-pool" in notes
    assert (await cluster.get(deployment))["spec"]["replicas"] == 2

    await helm(cluster, "upgrade", "my-pool", CHART, *label, "--set", "inferenceExtension.replicas=3")
    assert (await cluster.get(deployment))["spec"]["replicas"] == 3

    await helm(cluster, "upgrade", "my-pool", CHART, *label, "--set", "standaloneEnvoy.enabled=true")
    (envoy,) = (await cluster.get(deployment))["spec"]["template"]["spec"]["initContainers"]
    assert envoy["restartPolicy"] == "Always"

    await helm(cluster, "uninstall", "my-pool")
    for version, plural in (
        ("v1", "services"),
        ("v1", "configmaps"),
        ("v1", "serviceaccounts"),
        ("apps/v1", "deployments"),
        ("rbac.authorization.k8s.io/v1", "roles"),
        ("rbac.authorization.k8s.io/v1", "rolebindings"),
        ("networking.k8s.io/v1", "networkpolicies"),
        ("policy/v1", "poddisruptionbudgets"),
        (f"{POOLS}/v1", "inferencepools"),
    ):
        assert await cluster.list(path_of(version, plural, cluster.namespace)) == [], plural


@pytest.mark.parametrize("choice", ["defaults", "selector"])
async def test_the_picker_works_with_the_arguments_and_the_account_of_the_chart(choice: str, cluster: RealCluster) -> None:
    objects = render(LABELS if choice == "defaults" else SELECTOR)
    namespace = await cluster.create_namespace()
    for each in objects:
        each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", []):
            subject["namespace"] = namespace
        await cluster.apply(each, namespace=namespace)
    kubelet = Kubelet(cluster, namespace)
    await kubelet.create("server-0", "127.0.77.1", labels={"app": "my-model-server"})
    await as_picker(cluster, namespace)
    token = await cluster.service_account_token(ACCOUNT, namespace=namespace)
    kubeconfig = cluster.kubeconfig(token=token)
    arguments = [*arguments_of(objects)[1:], "--kubeconfig", str(kubeconfig), "--pool-namespace", namespace]

    async with EppProcess(*arguments) as epp:
        await wait_until(epp.pool, "one endpoint", _LONG_S)
        assert (await epp.pool()).keys() == {"127.0.77.1:8000"}
        if choice == "defaults":
            leases = path_of("coordination.k8s.io/v1", "leases", namespace)
            await wait_until(lambda: cluster.list(leases), "a Lease", _LONG_S)
            # Without a ready pod for a while, the leader writes an Event on the pool.
            await kubelet.set_ready("server-0", False)
            events = path_of("v1", "events", namespace)
            await wait_until(lambda: cluster.list(events), "an Event", _LONG_S)
        epp.terminate()
        assert await epp.wait(_LONG_S) == 0
        # Every refusal says Forbidden. (The digits 403 also come by chance, in the times of the log.)
        assert not [record for record in epp.log_records() if "forbidden" in str(record).lower()]


@pytest.mark.parametrize("name", CHOICES)
async def test_its_pods_may_run_where_only_restricted_ones_may(name: str, cluster: RealCluster) -> None:
    """Pod Security Standard `restricted`, which the API server itself enforces."""
    namespace = await cluster.create_namespace()
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.patch(path_of("v1", "namespaces", name=namespace), {"metadata": {"labels": label}})
    template = of_kind(render(CHOICES[name]), "Deployment")["spec"]["template"]
    # Names a controller of node pools would know.
    template["spec"].pop("priorityClassName", None)
    pod = {"metadata": {"name": "epp", "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    pods = path_of("v1", "pods", namespace)

    worse = copy.deepcopy(pod)
    del worse["spec"]["securityContext"]["runAsNonRoot"]

    async def is_refused() -> bool:
        try:
            await cluster.create(pods, worse, dryRun="All")
        except ApiStatusError as error:
            assert "violates PodSecurity" in error.message, error.message
            return True
        return False

    await wait_until(is_refused, "the label of the namespace to be known", _LONG_S)

    await cluster.create(pods, pod, dryRun="All")
