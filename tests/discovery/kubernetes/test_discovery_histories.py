"""Whatever happens to the objects, the connections and the API server: at rest the pool is what the API server has."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.membership import Membership
from epp.discovery.kubernetes.objects import InferencePool, Pod
from epp.discovery.kubernetes.pods import IpFamily
from epp.pool.endpoint import EndpointSpec, EndpointState
from tests.discovery.kubernetes.discovering import POOL, Discovering, collection, discovering
from tests.fakes.kube_api import POOLS_V1, FakeKubeApi, kube_api, pods_path
from tests.fakes.kube_objects import inference_model_rewrite, inference_objective, inference_pool, pod

NAMES = ("a", "b", "c")
GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
SELECTORS: tuple[Mapping[str, str], ...] = ({"app": "blue"}, {"app": "green"}, {"tier": "x"})
LABELS: tuple[Mapping[str, str], ...] = (*SELECTORS, {"app": "blue", "tier": "x"}, {"app": "other"})
WATCHES = 6
"""Of the pool, the pods, and two kinds in two groups."""
WATCH_S = 60.0
"""No watch may last longer; a proper end after that is its time limit's."""
REST_S = 60.0
"""The picture is true within milliseconds; nothing but a fault or a machine that stands still takes so long."""
GOOD_POOL = inference_pool(POOL, selector=SELECTORS[0], ports=(8000,))

Step = Callable[[FakeKubeApi, Discovering], Any]


@dataclass(frozen=True, slots=True)
class Named:
    """A step of a history, and what it is called in a failure."""

    name: str
    step: Step

    def __repr__(self) -> str:
        return self.name


class Pause(Enum):
    """How long to wait after a step."""

    NONE = "none"
    SHORT = "short"
    LONG = "until the picture is true"


# ── objects ──


def _put_pod(name: str, address: int, labels: Mapping[str, str], ports: tuple[int, ...], **rest: Any) -> Named:
    new = pod(name, ip=f"10.0.0.{address}", labels=labels, ports=ports, **rest)
    return Named(f"pod {name} .{address} {dict(labels)} {ports} {rest}", lambda api, _: api.put_pod(new))


def _delete_pod(name: str) -> Named:
    return Named(f"delete pod {name}", lambda api, _: _delete(api, pods_path(), name))


def _put_pool(selector: Mapping[str, str], ports: tuple[int, ...]) -> Named:
    new = inference_pool(POOL, selector=selector, ports=ports)
    return Named(f"pool {dict(selector)} {ports}", lambda api, _: api.put_inference_pool(new))


def _delete_pool(api: FakeKubeApi, _: Discovering) -> None:
    _delete(api, POOLS_V1.format("default"), POOL)


def _put_objective(group: str, name: str, priority: int) -> Named:
    new = inference_objective(name, priority=priority, pool=POOL, api_version=f"{group}/v1alpha2")
    return Named(f"objective {name}={priority} of {group}", lambda api, _: api.put(collection("objectives", group), new))


def _delete_objective(group: str, name: str) -> Named:
    where = collection("objectives", group)
    return Named(f"delete objective {name} of {group}", lambda api, _: _delete(api, where, name))


def _toggle_rewrite(group: str) -> Named:
    new = inference_model_rewrite("r", rules=[(["m"], [(group, 1)])], pool=POOL, api_version=f"{group}/v1alpha2")
    where = collection("rewrites", group)

    def toggle(api: FakeKubeApi, _: Discovering) -> None:
        if _has(api, where, "r"):
            api.delete(where, "r")
        else:
            api.put(where, new)

    return Named(f"put or delete a rewrite of {group}", toggle)


def _delete(api: FakeKubeApi, where: str, name: str) -> None:
    if _has(api, where, name):
        api.delete(where, name)


def _has(api: FakeKubeApi, where: str, name: str) -> bool:
    return (where, name) in api.store.objects


# ── what happens to the connections and the API server ──


def _end_in_time(api: FakeKubeApi, scene: Discovering) -> None:
    """All watches end at their time limits: the next ones go on where these ended."""
    scene.clock.advance(WATCH_S)
    api.end_watches()


TROUBLES = (
    Named("cut watches", lambda api, _: api.cut_watches()),
    Named("cut watches within a line", lambda api, _: api.cut_watches(within_a_line=True)),
    Named("end watches early", lambda api, _: api.end_watches()),
    Named("end watches in time", _end_in_time),
    Named("compact", lambda api, _: api.compact()),
    Named("410 as an event", lambda api, _: api.send_error(410)),
    Named("500 as an event", lambda api, _: api.send_error(500)),
    Named("an event that is none", lambda api, _: api.send_line(b'{"type":"ADDED","object":{}}\n')),
    Named("bookmarks", lambda api, _: api.send_bookmarks()),
    Named("503 for a list", lambda api, _: api.refuse("list", 503)),
    Named("429 for a watch", lambda api, _: api.refuse("watch", 429)),
    Named("a list that is cut", lambda api, _: api.refuse("list", 200, cut_after_bytes=20)),
    Named("restart", lambda api, _: api.restart()),
)

pods = st.builds(
    _put_pod,
    st.sampled_from(NAMES),
    st.integers(1, 4),  # more pods may have an address than one
    st.sampled_from(LABELS),
    st.sampled_from([(8000,), (8000, 8001), (9000,)]),
    ready=st.booleans(),
    restarts=st.integers(0, 1),
    phase=st.sampled_from(["Running", "Running", "Running", "Pending", "Failed"]),
    deletion_timestamp=st.sampled_from([None, None, "2026-01-02T03:05:00Z"]),
)
pools = st.builds(_put_pool, st.sampled_from(SELECTORS), st.sampled_from([(8000,), (8000, 8001), (8001,)]))
extensions = st.one_of(
    st.builds(_put_objective, st.sampled_from(GROUPS), st.sampled_from(["low", "high"]), st.integers(-2, 2)),
    st.builds(_delete_objective, st.sampled_from(GROUPS), st.sampled_from(["low", "high"])),
    st.builds(_toggle_rewrite, st.sampled_from(GROUPS)),
)
deletions = st.builds(_delete_pod, st.sampled_from(NAMES))
changes = st.one_of(pods, pods, deletions, pools, st.just(Named("delete the pool", _delete_pool)), extensions)


def _gap(unseen: list[Named]) -> Named:
    """The API server is away, and things happen that nobody is told."""

    async def go_away(api: FakeKubeApi, scene: Discovering) -> None:
        await api.stop()
        for each in unseen:
            each.step(api, scene)
        await api.start()

    return Named(f"unseen {unseen}", go_away)


gaps = st.builds(_gap, st.lists(deletions | changes, min_size=1, max_size=3))
steps = st.one_of(changes, changes, gaps, st.sampled_from(TROUBLES))


# ── the truth ──


def _specs(api: FakeKubeApi) -> list[EndpointSpec]:
    """The pool that the API server's objects make, computed at one stroke."""
    found = api.store.objects.get((POOLS_V1.format("default"), POOL))
    if found is None:
        return []
    definition = PoolDefinition.from_v1(msgspec.convert(found, InferencePool))
    objects = [msgspec.convert(each, Pod) for (where, _), each in api.store.objects.items() if where == pods_path()]
    membership = Membership(family=IpFamily.AUTO, known_engine=lambda name: name)
    return list(membership.specs({each.metadata.uid: each for each in objects}, definition).specs)


def _priority(api: FakeKubeApi, name: str) -> int:
    """Of the newer group where both have it."""
    for group in GROUPS:
        found = api.store.objects.get((collection("objectives", group), name))
        if found is not None:
            return int(found["spec"]["priority"])
    return 0


def _is_true(api: FakeKubeApi, scene: Discovering) -> bool:
    expected = {spec.address: spec for spec in _specs(api)}
    known = {endpoint.address: endpoint for endpoint in scene.pool.endpoints}
    rotation = {address for address, spec in expected.items() if not spec.draining and spec.not_ready_reason is None}
    return (
        {address: endpoint.spec for address, endpoint in known.items()} == expected
        and {endpoint.address for endpoint in scene.pool.ready} == rotation
        and {each.address for each in known.values() if each.state is EndpointState.READY} == rotation
        and all(scene.objectives.priority(name) == _priority(api, name) for name in ("low", "high"))
        and scene.rewrites.active == any(_has(api, collection("rewrites", group), "r") for group in GROUPS)
    )


def _is_watched(api: FakeKubeApi) -> bool:
    """Pods are watched while there is a pool; those of the last one may be so without it."""
    return WATCHES >= api.watches >= WATCHES - (not _has(api, POOLS_V1.format("default"), POOL))


async def _at_rest(api: FakeKubeApi, scene: Discovering) -> None:
    try:
        async with asyncio.timeout(REST_S):
            while not (_is_watched(api) and _is_true(api, scene)):
                await asyncio.sleep(0.0005)
    except TimeoutError:
        known = sorted(map(str, scene.pool.endpoints))
        expected = sorted(f"{spec.name} {spec.address}" for spec in _specs(api))
        requests = [f"{request.verb} {request.path}" for request in api.requests[-12:]]
        raise AssertionError(
            f"expected {WATCHES} watches and {expected}, found {api.watches} and {known}; last requests {requests}"
        ) from None


async def _play(history: list[tuple[Named, Pause]]) -> None:
    async with kube_api() as api:
        api.put_inference_pool(GOOD_POOL)
        for number, name in enumerate(NAMES, 1):
            api.put_pod(pod(name, ip=f"10.0.0.{number}", labels=SELECTORS[0]))
        async with discovering(api) as scene:
            await api.watched(WATCHES)
            for each, pause in history:
                await _do(each, api, scene)
                if pause is Pause.SHORT:
                    await _a_moment()
                elif pause is Pause.LONG:
                    await _at_rest(api, scene)
            await _at_rest(api, scene)


async def _do(each: Named, api: FakeKubeApi, scene: Discovering) -> None:
    outcome = each.step(api, scene)
    if asyncio.iscoroutine(outcome):
        await outcome


async def _a_moment() -> None:
    """Time for a few messages, not for all there is to say."""
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.mark.timeout(600)
@given(st.lists(st.tuples(steps, st.sampled_from(Pause)), min_size=2, max_size=16))
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_at_rest_the_pool_is_what_the_api_server_has(history: list[tuple[Named, Pause]]) -> None:
    """Field reports 3, 4, 6, 9 and 10, in any combination."""
    asyncio.run(_play(history))


@pytest.mark.timeout(600)
async def test_a_long_history_ends_in_the_truth() -> None:
    """More of the same in one go: thousands of changes, and every trouble many times."""
    dice = random.Random(4)
    async with kube_api() as api:
        api.put_inference_pool(GOOD_POOL)
        async with discovering(api) as scene:
            for number in range(1_500):
                name = dice.choice(NAMES)
                if dice.random() < 0.3:
                    _delete_pod(name).step(api, scene)
                else:
                    labels, ready = dice.choice(LABELS), dice.random() < 0.7
                    _put_pod(name, dice.randint(1, 4), labels, (8000,), ready=ready).step(api, scene)
                if number % 20 == 0:
                    _put_pool(dice.choice(SELECTORS), (8000,)).step(api, scene)
                    await _do(dice.choice(TROUBLES), api, scene)
                await asyncio.sleep(0)
            await _at_rest(api, scene)
