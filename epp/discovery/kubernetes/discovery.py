"""The endpoints are pods: those of an InferencePool, or those that a selector names.

```
 InferencePool ──► PoolPicture ◄── Pods            InferenceObjectives ──► Objectives
   (reflector)         │        (reflector of the     InferenceModelRewrites ──► ModelRewrites
                       ▼         selector in force)      (reflectors of both API groups)
                   PoolState
```
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NoReturn

from structlog.typing import FilteringBoundLogger

from epp.clock import Clock
from epp.config.settings import KubernetesSettings, SourceSettings
from epp.discovery.kubernetes.api_server import ApiServer
from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.label_selector import LabelSelector
from epp.discovery.kubernetes.leader import LeaderElection
from epp.discovery.kubernetes.membership import Membership
from epp.discovery.kubernetes.model_rewrites import read_rewrite_rules
from epp.discovery.kubernetes.objectives import read_priorities
from epp.discovery.kubernetes.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    InferencePoolV1Alpha2,
    Pod,
)
from epp.discovery.kubernetes.picture import PoolPicture
from epp.discovery.kubernetes.pods import IpFamily
from epp.discovery.kubernetes.pool_events import EventType, PoolEvents, Regarding
from epp.discovery.kubernetes.reflector import Reflector, Resource
from epp.lifecycle import Lifecycle, Phase
from epp.pool.model_rewrites import ModelRewrites
from epp.pool.objectives import Objectives
from epp.pool.state import PoolState
from epp.telemetry.kubernetes_metrics import KubernetesMetrics

POOL_GROUP = "inference.networking.k8s.io"
OLDER_GROUP = "inference.networking.x-k8s.io"
NEWER_GROUP = "llm-d.ai"
EXTENSIONS_VERSION = "v1alpha2"
POOL_VERSIONS: Mapping[str, str] = {POOL_GROUP: "v1", OLDER_GROUP: "v1alpha2"}
"""API group of the InferencePool → its version."""

SELECTOR_WAIT_S = 2.0
"""How long the pods of an old selector stay while those of the new one are being listed."""
LOOK_EVERY_S = 1.0
"""Between two looks at whether the pool has a ready endpoint, and at who leads."""
EMPTY_FOR_S = 5.0
"""So long without a ready endpoint is worth an Event."""
CLOSE_S = 2.0
"""How long giving back the Lease and closing connections may take at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSource:
    """Which pods.

    Attributes:
        namespace: Of the pool and the pods.
        pool_name: Of the InferencePool; None when `definition` says it all.
        pool_group: Its API group.
        definition: From flags; None with `pool_name`.
    """

    namespace: str
    pool_name: str | None
    pool_group: str
    definition: PoolDefinition | None
    family: IpFamily

    @property
    def lease_name(self) -> str:
        """Of the Lease that names the leader among the pickers of the same pods."""
        if self.pool_name is not None:
            return f"epp-{self.pool_name}"
        return f"epp-{hashlib.sha256(repr(self.definition).encode()).hexdigest()[:10]}"


def pod_source(source: SourceSettings, kubernetes: KubernetesSettings, namespace: str) -> PodSource:
    """What the settings say.

    Args:
        namespace: That of the credentials, used when none is given.

    Raises:
        ConfigError: The selector cannot be read.
    """
    return PodSource(
        namespace=kubernetes.pool_namespace or namespace,
        pool_name=source.pool_name,
        pool_group=kubernetes.pool_group,
        definition=(
            None
            if source.endpoint_selector is None
            else PoolDefinition.from_flags(source.endpoint_selector, source.endpoint_target_ports)
        ),
        family=IpFamily(kubernetes.ip_family),
    )


class KubernetesDiscovery:
    """Follows the API server for ever.

    The pool is told its membership as soon as the InferencePool and its pods were listed whole. While the API server is
    away, the last known state stays.
    """

    def __init__(
        self,
        pool: PoolState,
        api: ApiServer,
        source: PodSource,
        *,
        known_engine: Callable[[str], str],
        objectives: Objectives,
        rewrites: ModelRewrites,
        metrics: KubernetesMetrics,
        lifecycle: Lifecycle,
        identity: str,
        elect_leader: bool,
        clock: Clock,
        random: Random,
        log: FilteringBoundLogger,
    ) -> None:
        """Args:
        identity: Of this replica, unique among all; for the Lease and for Events.
        """
        self._pool = pool
        self._api = api
        self._source = source
        self._objectives = objectives
        self._rewrites = rewrites
        self._metrics = metrics
        self._clock = clock
        self._random = random
        self._log = log
        self._regarding: Regarding | None = None
        self._draining = asyncio.Event()
        self._news = asyncio.Event()
        self._ages: dict[str, Reflector[Any]] = {}
        self._faults_of_rules: tuple[str, ...] = ()
        self._priorities: dict[str, Mapping[str, InferenceObjective]] = {}
        self._rules: dict[str, Mapping[str, InferenceModelRewrite]] = {}
        self._picture = PoolPicture(
            pool,
            Membership(family=source.family, known_engine=known_engine),
            definition=source.definition,
            on_selector=self._news.set,
            operator=self,
            log=log,
        )
        self._leader = (
            LeaderElection(
                api,
                namespace=source.namespace,
                name=source.lease_name,
                identity=identity,
                clock=clock,
                random=random,
                log=log,
            )
            if elect_leader
            else None
        )
        self._events = PoolEvents(api, clock=clock, log=log, speaks=self._speaks, identity=identity)
        pool.details = {"namespace": source.namespace}
        metrics.read_ages_from(self.ages_s)
        if self._leader is not None:
            leader = self._leader
            metrics.leads = lambda: leader.is_leader
        lifecycle.on_change(self._phase_changed)

    # ── what others ask ──

    @property
    def leader(self) -> str | None:
        """Whom the Lease names; None without an election, or while nobody is known."""
        return None if self._leader is None else self._leader.leader

    def ages_s(self) -> Mapping[str, float | None]:
        """Resource → seconds since the API server last proved our state of it to be current; None before the first time."""
        now_s = self._clock.monotonic_s()
        return {
            name: None if reflector.fresh_at_s is None else now_s - reflector.fresh_at_s
            for name, reflector in self._ages.items()
        }

    # ── running ──

    async def run(self) -> NoReturn:
        """Keep the pool equal to the API server's; ends by cancellation."""
        self._log.info("kubernetes", server=self._api.server, namespace=self._source.namespace)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_pods())
                group.create_task(self._events.run())
                group.create_task(self._look_for_ready_endpoints())
                if self._leader is not None:
                    group.create_task(self._lead(self._leader))
                if self._source.pool_name is not None:
                    for reflector in self._reflectors_of_pool(self._source.pool_name):
                        group.create_task(reflector.run())
        finally:
            await self._close()
        raise AssertionError("one of the tasks above never ends")

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._api.aclose()
        except TimeoutError:
            pass

    def _reflectors_of_pool(self, name: str) -> list[Reflector[Any]]:
        source = self._source
        group = source.pool_group
        folder = f"/apis/{group}/{POOL_VERSIONS[group]}/namespaces/{source.namespace}/inferencepools"
        kind = InferencePool if group == POOL_GROUP else InferencePoolV1Alpha2
        found = [self._reflector("inferencepools", folder, kind, self._take_pools, field_selector=f"metadata.name={name}")]
        for each in (NEWER_GROUP, OLDER_GROUP):
            found.append(
                self._reflector(
                    f"inferenceobjectives.{each}",
                    self._extension(each, "inferenceobjectives"),
                    InferenceObjective,
                    partial(self._take_objectives, each),
                    optional=True,
                )
            )
            found.append(
                self._reflector(
                    f"inferencemodelrewrites.{each}",
                    self._extension(each, "inferencemodelrewrites"),
                    InferenceModelRewrite,
                    partial(self._take_rewrites, each),
                    optional=True,
                )
            )
        return found

    def _extension(self, group: str, plural: str) -> str:
        return f"/apis/{group}/{EXTENSIONS_VERSION}/namespaces/{self._source.namespace}/{plural}"

    def _reflector(
        self,
        name: str,
        path: str,
        kind: type[Any],
        on_change: Callable[[Mapping[str, Any]], None],
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        optional: bool = False,
    ) -> Reflector[Any]:
        resource = Resource(
            path=path,
            what=f"{name} in namespace {self._source.namespace}",
            kind=kind,
            label_selector=label_selector,
            field_selector=field_selector,
            optional=optional,
        )

        def take(found: Mapping[str, Any]) -> None:
            self._metrics.holds(name, len(found))
            on_change(found)

        reflector: Reflector[Any] = Reflector(
            self._api,
            resource,
            on_change=take,
            clock=self._clock,
            random=self._random,
            log=self._log,
            observer=self._metrics.of(name),
        )
        self._ages[name] = reflector
        return reflector

    async def _follow_pods(self) -> NoReturn:
        """One reflector: that of the selector in force.

        Where the selector changes, the old pods are followed until the new ones are listed, for they get requests until then.
        """
        async with asyncio.TaskGroup() as group:
            followed: asyncio.Task[None] | None = None
            while True:
                self._news.clear()
                selector = self._picture.wanted_selector
                if selector is None:
                    await self._news.wait()
                    continue
                fresh = group.create_task(self._reflector_of_pods(selector).run())
                while not self._picture.has_pods_of(selector) and self._picture.wanted_selector == selector:
                    await self._wait_for_news()
                outdated = followed if self._picture.has_pods_of(selector) else fresh
                followed = fresh if outdated is not fresh else followed
                if outdated is not None:
                    outdated.cancel()

    def _reflector_of_pods(self, selector: LabelSelector) -> Reflector[Any]:
        def take(pods: Mapping[str, Pod]) -> None:
            self._picture.take_pods(pods, selector)
            self._news.set()

        path = f"/api/v1/namespaces/{self._source.namespace}/pods"
        return self._reflector("pods", path, Pod, take, label_selector=selector.render())

    async def _wait_for_news(self) -> None:
        """Of pods, or of another selector; while none comes, the pods of the old selector must go in the end."""
        self._news.clear()
        try:
            async with asyncio.timeout(SELECTOR_WAIT_S):
                await self._news.wait()
        except TimeoutError:
            self._picture.stop_waiting()

    async def _lead(self, leader: LeaderElection) -> NoReturn:
        """Take part in the election until this process drains."""
        async with asyncio.TaskGroup() as group:
            election = group.create_task(leader.run())
            await self._draining.wait()
            election.cancel()
        await leader.resign()
        while True:
            await asyncio.Event().wait()

    async def _look_for_ready_endpoints(self) -> NoReturn:
        """An Event when the pool is empty for a while, and one when it is not any more."""
        empty_since_s: float | None = None
        told = False
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._events.look()
            self._tell_leader()
            now_s = self._clock.monotonic_s()
            if self._pool.ready or not self._pool.listed:
                empty_since_s = None
                if told:
                    told = False
                    note = f"{len(self._pool.ready)} endpoints are ready again"
                    self._events.tell(self._regarding, EventType.NORMAL, "EndpointsReady", note)
            elif empty_since_s is None:
                empty_since_s = now_s
            elif not told and now_s - empty_since_s >= EMPTY_FOR_S:
                told = True
                self.warn("NoReadyEndpoint", "no endpoint is ready: requests are answered 503")

    # ── what comes in ──

    def _take_pools(self, found: Mapping[str, InferencePool | InferencePoolV1Alpha2]) -> None:
        source = self._source
        name = f"{source.namespace}/{source.pool_name}"
        pool = next((each for each in found.values() if each.metadata.name == source.pool_name), None)
        if pool is not None:
            version = f"{source.pool_group}/{POOL_VERSIONS[source.pool_group]}"
            self._regarding = Regarding(version, "InferencePool", source.namespace, pool.metadata.name, pool.metadata.uid)
        self._picture.take_pool(pool, name)

    def _take_objectives(self, group: str, found: Mapping[str, InferenceObjective]) -> None:
        self._priorities[group] = dict(found)
        newer, older = (self._priorities.get(each, {}).values() for each in (NEWER_GROUP, OLDER_GROUP))
        name, pool_group = self._source.pool_name or "", self._source.pool_group
        self._objectives.replace(read_priorities(newer, older, pool_name=name, pool_group=pool_group))

    def _take_rewrites(self, group: str, found: Mapping[str, InferenceModelRewrite]) -> None:
        self._rules[group] = dict(found)
        objects = [each for of_group in self._rules.values() for each in of_group.values()]
        read = read_rewrite_rules(objects, pool_name=self._source.pool_name or "", pool_group=self._source.pool_group)
        self._rewrites.replace(read.rules)
        for sentence in read.problems:
            if sentence not in self._faults_of_rules:
                self._log.warning("a part of a rewrite rule is not followed", detail=sentence)
                self.warn("BadModelRewrite", sentence)
        self._faults_of_rules = read.problems

    # ── the operator ──

    def unusable_pods(self, by_reason: Mapping[str, int]) -> None:
        """See `epp.discovery.kubernetes.picture.Operator`."""
        self._metrics.unusable_pods = by_reason

    def warn(self, reason: str, note: str) -> None:
        """See `epp.discovery.kubernetes.picture.Operator`."""
        self._events.tell(self._regarding, EventType.WARNING, reason, note)

    def _tell_leader(self) -> None:
        if self._pool.details.get("leader") != self.leader:
            self._pool.details = {**self._pool.details, "leader": self.leader}

    def _speaks(self) -> bool:
        return self._leader is None or self._leader.is_leader

    def _phase_changed(self, phase: Phase) -> None:
        if phase is Phase.DRAINING:
            self._draining.set()
