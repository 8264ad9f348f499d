"""The whole discovery of pods against a fake API server, without the passing of time."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from epp.discovery.kubernetes.api_server import ApiServer
from epp.discovery.kubernetes.discovery import KubernetesDiscovery, PodSource
from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.pods import IpFamily
from epp.lifecycle import Lifecycle
from epp.pool.endpoint import EndpointState
from epp.pool.model_rewrites import ModelRewrites
from epp.pool.objectives import Objectives
from epp.pool.state import PoolState
from epp.telemetry.kubernetes_metrics import KubernetesMetrics
from tests.discovery.fakes import capturing_log, eventually, running
from tests.discovery.kubernetes.following import api_server
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeKubeApi

POOL = "pool"
GROUP = "inference.networking.k8s.io"
EVENTS = "/api/v1/namespaces/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
_GROUPS_OF = {"objectives": "inferenceobjectives", "rewrites": "inferencemodelrewrites"}


class NoPauses(random.Random):
    """Chance that makes every pause with full jitter as short as it can be: none at all."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Discovering:
    """Attributes:
    pool, objectives, rewrites, metrics, lifecycle: What the discovery writes and reads.
    lines: Its log.
    """

    def __init__(self, server: ApiServer, *, selector: str | None, group: str, elect_leader: bool, identity: str) -> None:
        self.clock = FakeClock()
        self.pool = PoolState(self.clock, name=POOL, source="kubernetes")
        self.objectives = Objectives()
        self.rewrites = ModelRewrites(random.Random(1))
        self.metrics = KubernetesMetrics()
        self.lifecycle = Lifecycle()
        log, self.lines = capturing_log()
        self.discovery = KubernetesDiscovery(
            self.pool,
            server,
            PodSource(
                namespace="default",
                pool_name=POOL if selector is None else None,
                pool_group=group,
                definition=None if selector is None else PoolDefinition.from_flags(selector, (8000,)),
                family=IpFamily.AUTO,
            ),
            known_engine=lambda name: name,
            objectives=self.objectives,
            rewrites=self.rewrites,
            metrics=self.metrics,
            lifecycle=self.lifecycle,
            identity=identity,
            elect_leader=elect_leader,
            clock=self.clock,
            random=NoPauses(1),
            log=log,
        )

    @property
    def addresses(self) -> list[str]:
        """Of all endpoints."""
        return sorted(endpoint.address for endpoint in self.pool.endpoints)

    def state(self, address: str) -> EndpointState | None:
        """Of one endpoint; None where there is none."""
        return next((each.state for each in self.pool.endpoints if each.address == address), None)

    async def has(self, *addresses: str) -> None:
        """Wait until these are the endpoints."""
        await eventually(lambda: self.pool.listed and self.addresses == sorted(addresses))

    def warnings(self) -> list[dict[str, Any]]:
        """Log lines that people should look at."""
        return [line for line in self.lines if line["log_level"] not in ("debug", "info")]

    def sample(self, family: str, **labels: str) -> float | None:
        """A number that `/metrics` would have; None where there is none."""
        found = [
            sample.value
            for metric in self.metrics.collect()
            for sample in metric.samples
            if sample.name == family and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


@asynccontextmanager
async def discovering(
    api: FakeKubeApi,
    *,
    selector: str | None = None,
    group: str = GROUP,
    elect_leader: bool = False,
    identity: str = "epp-0",
    server: ApiServer | None = None,
) -> AsyncIterator[Discovering]:
    """A discovery that runs for the length of the block.

    Args:
        selector: Instead of the InferencePool `POOL`; the port is 8000.
        server: Instead of requests to `api`.
    """
    scene = Discovering(server or api_server(api), selector=selector, group=group, elect_leader=elect_leader, identity=identity)
    async with running(scene.discovery.run()):
        yield scene


def events(api: FakeKubeApi) -> list[Mapping[str, Any]]:
    """The Events that were written, in the order of their names."""
    return [found for (where, _), found in sorted(api.store.objects.items()) if where == EVENTS]


def collection(what: str, group: str) -> str:
    """Where `objectives` or `rewrites` of an API group are."""
    return f"/apis/{group}/v1alpha2/namespaces/default/{_GROUPS_OF[what]}"
