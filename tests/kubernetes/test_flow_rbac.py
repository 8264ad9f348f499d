"""The Role in deploy/ is what the picker needs: with it everything works, and without any one of its verbs something does not."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from epp.clock import SystemClock
from epp.config.settings import KubernetesSettings, SourceSettings
from epp.discovery.kubernetes.access import find_access
from epp.discovery.kubernetes.api_server import ApiServer
from epp.discovery.kubernetes.discovery import KubernetesDiscovery, pod_source
from epp.lifecycle import Lifecycle
from epp.pool.model_rewrites import ModelRewrites
from epp.pool.objectives import Objectives
from epp.pool.state import PoolState
from epp.telemetry.kubernetes_metrics import KubernetesMetrics
from tests.flows.epp_process import ROOT, wait_until
from tests.kubernetes.api_client import path_of
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.programs import require_kubectl
from tests.kubernetes.scene import until_event

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]
POOL = "my-pool"
LABELS = {"app": "x"}
FORBIDDEN = " is forbidden: User "
"""In what the API server says of each missing right."""
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
Rule = dict[str, Any]


class Lines:
    """A log that keeps what is told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def _tell(self, event: str, **fields: object) -> None:
        self.seen.append(f"{event} {fields}")

    debug = info = warning = error = exception = _tell

    def has(self, part: str) -> bool:
        return any(part in line for line in self.seen)


class Picker:
    """The discovery of a picker, in this process."""

    def __init__(self, cluster: RealCluster, token: str) -> None:
        self.lines = Lines()
        self.pool = PoolState(SystemClock(), name=POOL, source="kubernetes")
        self.api = ApiServer(find_access(str(cluster.kubeconfig(token=token)), {}))
        source = SourceSettings(pool_name=POOL)
        self.discovery = KubernetesDiscovery(
            self.pool,
            self.api,
            pod_source(source, KubernetesSettings(), cluster.namespace),
            known_engine=lambda name: name,
            objectives=Objectives(),
            rewrites=ModelRewrites(random.Random(1)),
            metrics=KubernetesMetrics(),
            lifecycle=Lifecycle(),
            identity="one",
            elect_leader=True,
            clock=SystemClock(),
            random=random.Random(1),
            log=self.lines,  # type: ignore[arg-type]
        )


@asynccontextmanager
async def running(cluster: RealCluster, account: str) -> AsyncIterator[Picker]:
    """A picker with the rights of a service account."""
    picker = Picker(cluster, await cluster.service_account_token(account))
    task = asyncio.create_task(picker.discovery.run())
    try:
        yield picker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def prepare(cluster: RealCluster) -> None:
    """A pool with a pod that can be used and one that cannot, which is worth an Event."""
    await cluster.create_pool(POOL, LABELS, [8000])
    await cluster.pods.create("good", "127.1.2.3", labels=LABELS)
    await cluster.pods.create("odd", "127.1.2.4", labels=LABELS, ports=(9,))


async def bind(cluster: RealCluster, account: str, rules: Sequence[Rule]) -> None:
    """Give a service account these rights."""
    where = f"{RBAC}/{cluster.namespace}"
    await cluster.create(f"{where}/roles", {"metadata": {"name": account}, "rules": list(rules)})
    binding = {
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}],
    }
    await cluster.create(f"{where}/rolebindings", binding)
    # The API server learns of a role by a watch of its own.
    user = cluster.as_bearer(await cluster.service_account_token(account))
    right = {"name": rules[0].get("resourceNames", [""])[0]}
    what = rules[0]["verbs"][0], rules[0]["apiGroups"][0], rules[0]["resources"][0]
    await wait_until(lambda: user.can(*what, cluster.namespace, **right), "the role to be in force")


async def shipped_rules() -> list[Rule]:
    """The rules of the Role in deploy/kustomize/base, whose pool is `my-pool`."""
    kubectl = require_kubectl()
    process = await asyncio.create_subprocess_exec(
        *(kubectl, "kustomize", ROOT / "deploy/kustomize/base"), stdout=asyncio.subprocess.PIPE
    )
    rendered, _ = await process.communicate()
    assert process.returncode == 0
    (role,) = [each for each in yaml.safe_load_all(rendered) if each["kind"] == "Role"]
    rules: list[Rule] = role["rules"]
    return rules


def without_one_right(rules: Sequence[Rule]) -> Iterator[tuple[str, list[Rule]]]:
    """Every set of rules that lacks one verb on one resource of one group, with what it lacks."""
    single = [
        {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    for number, lacking in enumerate(single):
        what = f"{lacking['verbs'][0]} {lacking['resources'][0]} {lacking['apiGroups'][0] or 'core'}"
        yield what, single[:number] + single[number + 1 :]


async def test_with_the_role_all_of_it_works(cluster: RealCluster) -> None:
    await prepare(cluster)
    await bind(cluster, "epp", await shipped_rules())
    async with running(cluster, "epp") as picker:
        await wait_until(lambda: picker.pool.listed, "the pool to be listed")
        await wait_until(lambda: picker.pool.details.get("leader") == "one", "the Lease")
        await until_event(cluster, lambda event: event["reason"] == "UnusablePod", "an Event")
        await wait_until(lambda: len(picker.discovery.ages_s()) == 6, "all kinds to be followed")
        await wait_until(lambda: None not in picker.discovery.ages_s().values(), "all kinds to be listed")
    assert [endpoint.address for endpoint in picker.pool.endpoints] == ["127.1.2.3:8000"]
    assert not picker.lines.has(FORBIDDEN)


async def test_without_any_one_of_its_rights_something_does_not_work(control_plane: ControlPlane) -> None:
    rules = await shipped_rules()
    few_at_a_time = asyncio.Semaphore(4)  # more of them would be too much for the API server on a busy machine

    async def lacks(what: str, rest: list[Rule]) -> None:
        async with few_at_a_time, RealCluster(control_plane) as cluster:
            await prepare(cluster)
            if what == "patch events core":  # only where the Event is there already
                await bind(cluster, "all", rules)
                async with running(cluster, "all"):
                    await until_event(cluster, lambda event: event["reason"] == "UnusablePod", "an Event")
                    lease = path_of("coordination.k8s.io/v1", "leases", cluster.namespace, f"epp-{POOL}")
                await cluster.delete(lease)
            await bind(cluster, "epp", rest)
            async with running(cluster, "epp") as picker:
                verb, resource, group = what.split()
                part = f'cannot {verb} resource "{resource}" in API group "{"" if group == "core" else group}"'
                await wait_until(lambda: picker.lines.has(part), f"a line on the missing right to {what}", 120)
                assert picker.lines.has(FORBIDDEN)

    cases = dict(without_one_right(rules))
    assert len(cases) >= 15
    async with asyncio.TaskGroup() as group:
        for what, rest in cases.items():
            group.create_task(lacks(what, rest), name=what)
