"""What an operator sees: numbers, log lines, Events on the pool, and the Lease of the one replica that writes them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from epp.discovery.kubernetes import discovery as discovery_module
from epp.lifecycle import Phase
from tests.discovery.fakes import eventually
from tests.discovery.kubernetes.discovering import GROUP, LEASES, POOL, discovering, events
from tests.fakes.kube_api import POOLS_V1, FakeKubeApi, kube_api
from tests.fakes.kube_objects import inference_pool, pod

LABELS = {"app": "server"}
ODD = pod("odd", ip="10.0.0.7", labels=LABELS, ports=(8300,))
LEASE = f"epp-{POOL}"


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeApi]:
    """An API server with a pool of one pod."""
    async with kube_api() as started:
        started.put_inference_pool(inference_pool(POOL, selector=LABELS, ports=(8000,)))
        started.put_pod(pod("a", ip="10.0.0.1", labels=LABELS))
        yield started


def lease(api: FakeKubeApi) -> dict[str, Any]:
    """`spec` of the Lease; empty where there is none."""
    found: dict[str, Any] = api.store.objects.get((LEASES, LEASE), {"spec": {}})["spec"]
    return found


async def test_a_pod_that_cannot_be_used_is_counted_told_and_written_on_the_pool(api: FakeKubeApi) -> None:
    """Field report 8."""
    api.put_pod(ODD)
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000")
        await eventually(lambda: events(api))
        assert scene.sample("epp_unusable_pods", reason="no_target_port") == 1.0
        assert scene.sample("epp_unusable_pods") == 1.0
        (line,) = scene.warnings()
        api.delete_pod("odd")
        await eventually(lambda: scene.sample("epp_unusable_pods", reason="no_target_port") == 0.0)
        await scene.has("10.0.0.1:8000")

    pool = api.store.objects[POOLS_V1.format("default"), POOL]
    (event,) = events(api)
    assert event["involvedObject"] == {
        "apiVersion": f"{GROUP}/v1",
        "kind": "InferencePool",
        "namespace": "default",
        "name": POOL,
        "uid": pool["metadata"]["uid"],
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "UnusablePod", line["detail"])
    assert all(part in event["message"] for part in ("odd", "8300", "8000"))


async def test_a_pool_that_cannot_be_used_is_told_on_the_pool(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000")
        await api.watched(6)
        api.put_inference_pool(inference_pool(POOL, selector={}, ports=(8000,)))
        await eventually(lambda: events(api))
        assert scene.addresses == ["10.0.0.1:8000"]
    (event,) = events(api)
    assert event["reason"] == "InvalidPool"
    assert "spec.selector.matchLabels" in event["message"]


async def test_a_pool_without_a_ready_endpoint_is_told_after_a_while_and_so_is_its_return(
    api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_EVERY_S", 0.002)
    async with discovering(api) as scene:
        await scene.has("10.0.0.1:8000")
        await api.watched(6)
        api.put_pod(pod("a", ip="10.0.0.1", labels=LABELS, ready=False))
        await eventually(lambda: not scene.pool.ready)
        began_s = scene.clock.now_s

        def is_told_later() -> bool:
            scene.clock.advance(0.5)
            return bool(events(api))

        await eventually(is_told_later)
        assert scene.clock.now_s - began_s >= discovery_module.EMPTY_FOR_S
        api.put_pod(pod("a", ip="10.0.0.1", labels=LABELS))
        await eventually(lambda: len(events(api)) == 2)
    assert {event["reason"] for event in events(api)} == {"NoReadyEndpoint", "EndpointsReady"}


async def test_without_the_right_to_write_events_everything_else_goes_on(api: FakeKubeApi) -> None:
    api.refuse("create", 403, times=None)
    api.put_pod(ODD)
    async with discovering(api) as scene:
        await eventually(lambda: [line for line in scene.lines if line["event"] == "events on the pool cannot be written"])
        await api.watched(6)
        api.put_pod(pod("b", ip="10.0.0.2", labels=LABELS))
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")


# ── several replicas ──


async def test_only_the_leader_writes_events_and_all_follow_the_pool(api: FakeKubeApi) -> None:
    async with discovering(api, elect_leader=True, identity="epp-0") as first:
        await eventually(lambda: first.sample("epp_leader") == 1.0)
        async with discovering(api, elect_leader=True, identity="epp-1") as second:
            await eventually(lambda: second.discovery.leader == "epp-0")
            await api.watched(12)
            api.put_pod(ODD)
            await eventually(lambda: len(first.warnings()) == len(second.warnings()) == 1)
            await eventually(lambda: events(api))
            assert [each.addresses for each in (first, second)] == [["10.0.0.1:8000"]] * 2
            assert second.sample("epp_leader") == 0.0
            assert first.sample("epp_unusable_pods") == second.sample("epp_unusable_pods") == 1.0
    assert [event["reportingInstance"] for event in events(api)] == ["epp-0"]
    written = [request for request in api.requests if request.verb in ("create", "patch") and "/events" in request.path]
    assert len(written) == 1


async def test_without_an_election_there_is_no_lease_and_no_leader(api: FakeKubeApi) -> None:
    async with discovering(api) as scene:
        await api.watched(6)
        assert scene.discovery.leader is None
        assert scene.sample("epp_leader") is None
    assert lease(api) == {}


async def test_a_draining_replica_gives_the_lease_back_and_goes_on_following(api: FakeKubeApi) -> None:
    async with discovering(api, elect_leader=True) as scene:
        await eventually(lambda: scene.sample("epp_leader") == 1.0)
        assert lease(api)["holderIdentity"] == "epp-0"
        await api.watched(6)
        scene.lifecycle.enter(Phase.SERVING)
        assert lease(api)["holderIdentity"] == "epp-0"
        scene.lifecycle.enter(Phase.DRAINING)
        await eventually(lambda: lease(api)["holderIdentity"] == "")
        assert scene.sample("epp_leader") == 0.0
        api.put_pod(pod("b", ip="10.0.0.2", labels=LABELS))
        await scene.has("10.0.0.1:8000", "10.0.0.2:8000")
    async with discovering(api, elect_leader=True, identity="epp-1") as next_one:
        await eventually(lambda: next_one.discovery.leader == "epp-1")
    assert lease(api)["leaseTransitions"] == 1


async def test_a_replica_without_the_right_to_leases_serves_and_says_so_once(api: FakeKubeApi) -> None:
    api.refuse("get", 403, times=None, message="leases are not for you")
    async with discovering(api, elect_leader=True) as scene:
        await scene.has("10.0.0.1:8000")
        await eventually(lambda: scene.warnings())
        (line,) = scene.warnings()
        assert "leases are not for you" in line["because"]
        assert scene.sample("epp_leader") == 0.0
