"""InferencePool, pods and what belongs to them, from the API server into the pool, over real sockets."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest

from epp.discovery.kubernetes import discovery as discovery_module
from epp.discovery.kubernetes.api_server import ApiServer
from epp.pool.endpoint import EndpointState
from epp.pool.model_rewrites import Rewrite
from tests.discovery.fakes import eventually
from tests.discovery.kubernetes.discovering import POOL, Discovering, collection, discovering
from tests.fakes.kube_api import POOLS_V1, FakeKubeApi, kube_api, pods_path
from tests.fakes.kube_api_watch import line_of
from tests.fakes.kube_objects import inference_model_rewrite, inference_objective, inference_pool, pod

BLUE, GREEN = {"app": "blue"}, {"app": "green"}
NEWER, OLDER = "llm-d.ai", "inference.networking.x-k8s.io"


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeApi]:
    """An API server with a pool of blue pods, of which there are two, and a green one."""
    async with kube_api() as started:
        started.put_inference_pool(inference_pool(POOL, selector=BLUE, ports=(8000,)))
        started.put_pod(pod("a", ip="10.0.0.1", labels=BLUE))
        started.put_pod(pod("b", ip="10.0.0.2", labels=BLUE))
        started.put_pod(pod("g", ip="10.0.0.9", labels=GREEN))
        yield started


def lists_of(api: FakeKubeApi, path: str) -> list[dict[str, str]]:
    """The parameters of each list that was asked for."""
    return [dict(request.query) for request in api.requests if request.verb == "list" and request.path == path]


async def all_followed(api: FakeKubeApi) -> None:
    """Wait for a watch of each resource: pool, pods, and two kinds in two groups."""
    await api.watched(6)


# ── pool and pods ──


async def test_nothing_is_known_before_the_pool_and_its_pods_were_listed(api: FakeKubeApi) -> None:
    """Field report 79: an empty pool and one that was not listed yet are not the same."""
    api.hold_lists()
    async with discovering(api) as scene:
        await eventually(lambda: lists_of(api, POOLS_V1.format("default")))
        assert not scene.pool.listed
        api.release_lists()
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")


async def test_a_pool_that_comes_after_the_start_is_found_with_its_pods() -> None:
    async with kube_api() as api, discovering(api) as scene:
        api.put_pod(pod("a", labels=BLUE))
        await eventually(lambda: scene.warnings())
        assert not scene.pool.listed
        assert lists_of(api, pods_path()) == [], "without a pool nobody knows which pods"
        api.put_inference_pool(inference_pool(POOL, selector=BLUE, ports=(8000,)))
        await scene.has("10.0.0.1:8000")
        assert [line["event"] for line in scene.warnings()] == ["the InferencePool is missing"]


async def test_the_api_server_is_asked_for_this_pool_and_its_pods_only(api: FakeKubeApi) -> None:
    """Namespace and selectors are in the requests: the API server sends nothing else, and a Role is enough."""
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await all_followed(api)
    asked = [request for request in api.requests if request.verb in ("list", "watch")]
    assert all("/namespaces/default/" in request.path for request in asked)
    for request in asked:
        if request.path == pods_path():
            assert request.query["labelSelector"] == "app=blue"
        if request.path == POOLS_V1.format("default"):
            assert request.query["fieldSelector"] == f"metadata.name={POOL}"
    assert {request.path for request in asked} == {
        pods_path(),
        POOLS_V1.format("default"),
        *(collection(what, group) for what in ("objectives", "rewrites") for group in (NEWER, OLDER)),
    }


async def test_a_selector_from_flags_needs_nothing_but_pods(api: FakeKubeApi) -> None:
    async with discovering(api, selector="app in (blue, green)") as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000")
    assert {request.path for request in api.requests} == {pods_path()}


async def test_a_pool_of_the_older_group_is_followed_there() -> None:
    async with kube_api() as api:
        api.put_inference_pool(inference_pool(POOL, selector=BLUE, ports=(8000,), version="v1alpha2"))
        api.put_pod(pod("a", labels=BLUE))
        async with discovering(api, group=OLDER) as scene:
            await scene.has("10.0.0.1:8000")


async def test_pods_come_change_and_go(api: FakeKubeApi) -> None:
    """Field reports 1 and 2: a deletion mark counts although the pod is ready, readiness counts at once."""
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await api.watched()
        api.put_pod(pod("a", ip="10.0.0.1", labels=BLUE, deletion_timestamp="2026-01-02T03:05:00Z"))
        await eventually(lambda: scene.state("10.0.0.1:8000") is EndpointState.DRAINING)
        api.put_pod(pod("b", ip="10.0.0.2", labels=BLUE, ready=False))
        await eventually(lambda: scene.state("10.0.0.2:8000") is EndpointState.UNREADY)
        api.delete_pod("a")
        api.put_pod(pod("b", ip="10.0.0.2", labels=BLUE))
        await scene.has("10.0.0.2:8000")
        await eventually(lambda: [each.address for each in scene.pool.ready] == ["10.0.0.2:8000"])


async def test_a_new_selector_takes_other_pods_and_leaves_those_of_the_old_one(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await all_followed(api)
        api.put_inference_pool(inference_pool(POOL, selector=GREEN, ports=(8000,)))
        await scene.has("10.0.0.9:8000")
        await eventually(lambda: api.watches == 6)
        api.put_pod(pod("g2", ip="10.0.0.8", labels=GREEN))
        api.put_pod(pod("b2", ip="10.0.0.3", labels=BLUE))
        await scene.has("10.0.0.8:8000", "10.0.0.9:8000")
    assert [each["labelSelector"] for each in lists_of(api, pods_path())] == ["app=blue", "app=green"]


async def test_the_pool_is_never_empty_between_two_selectors(api: FakeKubeApi) -> None:
    """The list for the new one takes its time; what is known serves until then."""
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await all_followed(api)
        api.hold_lists()
        api.put_inference_pool(inference_pool(POOL, selector=GREEN, ports=(8000,)))
        await eventually(lambda: lists_of(api, pods_path())[-1]["labelSelector"] == "app=green")
        assert scene.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"]
        api.release_lists()
        await scene.has("10.0.0.9:8000")


class ScriptedApi:
    """Requests without a network: what a test gives to two watches in one step is seen in one step.

    Attributes:
        asked: Selectors of the lists of pods; only the first of them is answered.
    """

    server = "scripted"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._watches: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self._lists: dict[str, list[dict[str, Any]]] = {
            "inferencepools": [inference_pool(POOL, selector=BLUE, ports=(8000,), uid="pool")],
            "pods": [pod("a", ip="10.0.0.1", labels=BLUE, uid="a")],
        }

    def event(self, kind: str, found: dict[str, Any]) -> None:
        self._watches[kind].put_nowait(line_of("MODIFIED", found))

    async def get(self, path: str, params: Mapping[str, Any]) -> bytes:
        kind = path.rpartition("/")[2]
        if kind == "pods":
            self.asked.append(params["labelSelector"])
            if len(self.asked) > 1:
                await asyncio.Event().wait()
        return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": self._lists.get(kind, [])})

    async def watch(self, path: str, params: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        while True:
            yield await self._watches[path.rpartition("/")[2]].get()

    async def aclose(self) -> None:
        pass


async def test_events_of_old_pods_beside_a_new_selector_do_not_empty_the_pool(api: FakeKubeApi) -> None:
    """What the watch of the old selector brings in the same moment as the new selector comes says nothing about the new."""
    scripted = ScriptedApi()
    async with discovering(api, server=cast("ApiServer", scripted)) as scene:
        await scene.has("10.0.0.1:8000")
        scripted.event("inferencepools", inference_pool(POOL, selector=GREEN, ports=(8000,), uid="pool"))
        scripted.event("pods", pod("a", ip="10.0.0.1", labels=BLUE | {"new": "label"}, uid="a"))
        await eventually(lambda: scripted.asked == ["app=blue", "app=green"])
        assert scene.addresses == ["10.0.0.1:8000"]


async def test_pods_that_do_not_match_go_when_the_list_for_a_new_selector_does_not_come(
    api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "SELECTOR_WAIT_S", 0.02)
    api.put_pod(pod("both", ip="10.0.0.3", labels=BLUE | {"tier": "x"}))
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
        await all_followed(api)
        api.hold_lists()
        api.put_inference_pool(inference_pool(POOL, selector={"tier": "x"}, ports=(8000,)))
        await scene.has("10.0.0.3:8000")
        api.release_lists()


async def test_a_change_of_ports_needs_no_new_list(api: FakeKubeApi) -> None:
    """Field report 6."""
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await all_followed(api)
        api.delete_pod("b")
        api.put_pod(pod("a", ip="10.0.0.1", labels=BLUE, ports=(8000, 8001)))
        api.put_inference_pool(inference_pool(POOL, selector=BLUE, ports=(8000, 8001)))
        await scene.has("10.0.0.1:8000", "10.0.0.1:8001")
        api.put_inference_pool(inference_pool(POOL, selector=BLUE, ports=(8000,)))
        await scene.has("10.0.0.1:8000")
    assert len(lists_of(api, pods_path())) == 1


async def test_with_the_pool_its_endpoints_go_and_they_come_back_with_it(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await all_followed(api)
        pool = inference_pool(POOL, selector=BLUE, ports=(8000,))
        api.delete_inference_pool(pool)
        await scene.has()
        api.put_pod(pod("c", ip="10.0.0.3", labels=BLUE))
        api.put_inference_pool(pool)
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")


async def test_a_namespace_without_the_kinds_of_extensions_is_no_trouble(api: FakeKubeApi) -> None:
    api.absent |= {"inferenceobjectives", "inferencemodelrewrites"}
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
        await eventually(lambda: len({request.path for request in api.requests}) == 6)
    assert scene.warnings() == []


# ── objectives and rewrites ──


@pytest.mark.parametrize("group", [NEWER, OLDER])
async def test_objectives_of_both_groups_are_there_while_they_exist(api: FakeKubeApi, group: str) -> None:
    async with discovering(api) as scene:
        await all_followed(api)
        where = collection("objectives", group)
        api.put(where, inference_objective("urgent", priority=7, pool=POOL, api_version=f"{group}/v1alpha2"))
        await eventually(lambda: scene.objectives.priority("urgent") == 7)
        api.put(where, inference_objective("urgent", priority=-3, pool=POOL, api_version=f"{group}/v1alpha2"))
        await eventually(lambda: scene.objectives.priority("urgent") == -3)
        api.delete(where, "urgent")
        await eventually(lambda: scene.objectives.priority("urgent") == 0)


@pytest.mark.parametrize("group", [NEWER, OLDER])
async def test_rewrites_of_both_groups_are_in_force_while_they_exist(api: FakeKubeApi, group: str) -> None:
    rewrite = inference_model_rewrite("r", rules=[(["m"], [("m-v2", 1)])], pool=POOL, api_version=f"{group}/v1alpha2")
    async with discovering(api) as scene:
        await all_followed(api)
        where = collection("rewrites", group)
        api.put(where, rewrite)
        await eventually(lambda: scene.rewrites.active)
        assert scene.rewrites.choose("m") == Rewrite("r", "m-v2")
        assert scene.rewrites.choose("other") is None
        api.delete(where, "r")
        await eventually(lambda: not scene.rewrites.active)


async def test_what_belongs_to_another_pool_does_not_count_here(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await all_followed(api)
        where = collection("objectives", NEWER)
        api.put(where, inference_objective("theirs", priority=9, pool="other", api_version=f"{NEWER}/v1alpha2"))
        api.put(where, inference_objective("ours", priority=1, pool=POOL, api_version=f"{NEWER}/v1alpha2"))
        await eventually(lambda: scene.objectives.priority("ours") == 1)
        assert scene.objectives.priority("theirs") == 0


# ── what others ask, and the end ──


async def test_ages_tell_how_long_ago_each_resource_was_proved_current(api: FakeKubeApi) -> None:
    api.hold_lists()
    async with discovering(api) as scene:
        await eventually(lambda: len(scene.discovery.ages_s()) == 5)
        assert set(scene.discovery.ages_s().values()) == {None}
        api.release_lists()
        await all_followed(api)
        scene.clock.advance(7)
        assert scene.discovery.ages_s() == {
            "inferencepools": 7.0,
            "pods": 7.0,
            f"inferenceobjectives.{NEWER}": 7.0,
            f"inferenceobjectives.{OLDER}": 7.0,
            f"inferencemodelrewrites.{NEWER}": 7.0,
            f"inferencemodelrewrites.{OLDER}": 7.0,
        }
        api.put_pod(pod("c", ip="10.0.0.3", labels=BLUE))
        await eventually(lambda: scene.discovery.ages_s()["pods"] == 0.0)
        assert scene.discovery.ages_s()["inferencepools"] == 7.0
        assert scene.sample("epp_kubernetes_state_age_seconds", resource="inferencepools") == 7.0
        await eventually(lambda: scene.sample("epp_kubernetes_objects", resource="pods") == 3.0)
        await eventually(lambda: scene.sample("epp_kubernetes_lists_total") == 6.0)


async def test_after_a_new_selector_the_age_is_that_of_its_own_pods(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await all_followed(api)
        api.hold_lists()
        api.put_inference_pool(inference_pool(POOL, selector=GREEN, ports=(8000,)))
        await eventually(lambda: scene.discovery.ages_s()["pods"] is None)
        api.release_lists()
        await eventually(lambda: scene.discovery.ages_s()["pods"] == 0.0)


@pytest.mark.parametrize("stage", ["while lists are out", "while it watches", "while the server is away"])
async def test_after_cancellation_no_task_and_no_connection_is_left(api: FakeKubeApi, stage: str) -> None:
    if stage == "while lists are out":
        api.hold_lists()
    async with discovering(api, elect_leader=True) as scene:
        if stage == "while lists are out":
            await eventually(lambda: api.count("list") == 5)
        else:
            await all_followed(api)
        if stage == "while the server is away":
            await api.stop()
            await eventually(lambda: (scene.sample("epp_kubernetes_api_errors_total") or 0) >= 6)
        assert _tasks_of_the_product() != []
    assert _tasks_of_the_product() == []
    api.release_lists()
    await eventually(lambda: not api.connections)


def _tasks_of_the_product() -> list[str]:
    """The fake API server has tasks of its own in this loop."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return [each.__qualname__ for each in coroutines if "/epp/discovery/" in each.cr_code.co_filename]


async def test_two_discoveries_of_one_pool_see_the_same(api: FakeKubeApi) -> None:
    async with discovering(api) as one, discovering(api, identity="epp-1") as other:
        expected = ("10.0.0.1:8000", "10.0.0.2:8000")
        await one.has(*expected)
        await other.has(*expected)
        assert _names(one) == _names(other) == ["a-rank-0", "b-rank-0"]


def _names(scene: Discovering) -> list[str]:
    return [endpoint.spec.name for endpoint in scene.pool.endpoints]
