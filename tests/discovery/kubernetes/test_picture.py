"""The InferencePool and the pods together are the membership of the pool."""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.label_selector import LabelSelector
from epp.discovery.kubernetes.membership import Membership
from epp.discovery.kubernetes.objects import InferencePool, InferencePoolV1Alpha2, Pod
from epp.discovery.kubernetes.picture import PoolPicture
from epp.discovery.kubernetes.pods import IpFamily
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.kube_objects import inference_pool, pod

LABELS = {"app": "vllm"}
NAME = "default/p"


class Scene:
    """A picture, and what it says to whom."""

    def __init__(self, definition: PoolDefinition | None = None) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.unusable: Mapping[str, int] = {}
        self.selectors = 0
        self.pool = PoolState(FakeClock(), name="p", source="kubernetes")
        self.picture = PoolPicture(
            self.pool,
            Membership(family=IpFamily.AUTO, known_engine=lambda name: name),
            definition=definition,
            on_selector=self._count,
            operator=self,
            log=self,
        )

    def _count(self) -> None:
        self.selectors += 1

    def info(self, event: str, **_: object) -> None:
        self.lines.append(event)

    def warning(self, event: str, **_: object) -> None:
        self.lines.append(event)

    def unusable_pods(self, by_reason: Mapping[str, int]) -> None:
        self.unusable = {reason: count for reason, count in by_reason.items() if count}

    def warn(self, reason: str, note: str) -> None:
        self.warnings.append(f"{reason}: {note}")

    def define(self, *ports: int, selector: Mapping[str, str] = LABELS) -> None:
        self.picture.take_pool(_pool(selector, ports), NAME)

    def pods(self, *objects: dict[str, Any], of: Mapping[str, str] | None = None) -> None:
        """The list of the pods of a selector; by default of the one that the pool has now."""
        definition = self.picture.definition
        if of is not None:
            selector = LabelSelector.of_labels(of, "test")
        else:
            assert definition is not None
            selector = definition.selector
        decoded = [msgspec.convert(each, Pod) for each in objects]
        self.picture.take_pods({each.metadata.uid: each for each in decoded}, selector)

    @property
    def addresses(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.pool.endpoints)


def _pool(selector: Mapping[str, str], ports: tuple[int, ...]) -> InferencePool:
    return msgspec.convert(inference_pool("p", selector=selector, ports=ports), InferencePool)


def test_nothing_is_known_before_pool_and_pods_are_listed() -> None:
    """Field report 79: ready before the first sync."""
    scene = Scene()
    scene.define(8000)
    before = scene.pool.listed
    scene.pods(pod("a", labels=LABELS))
    assert (before, scene.pool.listed) == (False, True)
    assert scene.addresses == ["10.0.0.1:8000"]


def test_a_pool_without_pods_is_known_to_be_empty() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods()
    assert scene.pool.listed
    assert scene.addresses == []


def test_a_missing_pool_is_told_once_and_never_taken_for_an_empty_one() -> None:
    scene = Scene()
    scene.picture.take_pool(None, NAME)
    scene.picture.take_pool(None, NAME)
    assert scene.lines == ["the InferencePool is missing"]
    assert not scene.pool.listed
    scene.define(8000)
    scene.pods(pod("a", labels=LABELS))
    assert scene.lines == ["the InferencePool is missing", "the InferencePool is there"]
    assert scene.addresses == ["10.0.0.1:8000"]


def test_with_the_pool_its_endpoints_go_and_they_come_back_with_it() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("a", labels=LABELS))
    scene.picture.take_pool(None, NAME)
    assert scene.addresses == []
    scene.pods(pod("a", labels=LABELS), pod("b", ip="10.0.0.2", labels=LABELS), of=LABELS)
    assert scene.addresses == []
    scene.define(8000)
    assert scene.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"], "its pods were followed meanwhile"


def test_a_change_of_ports_takes_effect_at_once() -> None:
    """Field report 6."""
    scene = Scene()
    scene.define(8000, 8001)
    scene.pods(pod("a", labels=LABELS, ports=(8000, 8001)))
    assert scene.addresses == ["10.0.0.1:8000", "10.0.0.1:8001"]
    scene.define(8000)
    assert scene.addresses == ["10.0.0.1:8000"]
    assert scene.selectors == 1, "the pods are the same: they need not be listed again"


def test_a_new_selector_does_not_empty_the_pool_while_its_pods_are_being_listed() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("blue", labels=LABELS))
    scene.define(8000, selector={"app": "green"})
    assert scene.selectors == 2
    assert scene.addresses == ["10.0.0.1:8000"]
    scene.pods(pod("green", ip="10.0.0.2", labels={"app": "green"}))
    assert scene.addresses == ["10.0.0.2:8000"]
    scene.pods(pod("blue", labels=LABELS), of=LABELS)
    assert scene.addresses == ["10.0.0.2:8000"], "late word of the old selector says nothing any more"


def test_pods_of_the_old_selector_still_drain_while_those_of_the_new_one_are_being_listed() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("a", labels=LABELS), pod("b", ip="10.0.0.2", labels=LABELS))
    scene.define(8000, selector={"app": "green"})
    marked = pod("a", labels=LABELS, deletion_timestamp="2026-01-02T03:04:05Z")
    scene.pods(marked, pod("b", ip="10.0.0.2", labels=LABELS), of=LABELS)
    assert [endpoint.address for endpoint in scene.pool.ready] == ["10.0.0.2:8000"]


def test_a_change_of_ports_beside_that_of_the_selector_takes_effect_at_once() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("a", labels=LABELS, ports=()))
    scene.define(8001, selector={"app": "green"})
    assert scene.addresses == ["10.0.0.1:8001"]


def test_pods_of_the_old_selector_go_when_the_new_list_does_not_come() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("blue", labels=LABELS), pod("both", ip="10.0.0.2", labels=LABELS | {"tier": "x"}))
    scene.define(8000, selector={"tier": "x"})
    scene.picture.stop_waiting()
    assert scene.addresses == ["10.0.0.2:8000"]
    scene.pods(pod("both", ip="10.0.0.3", labels=LABELS | {"tier": "x"}), pod("blue", labels=LABELS), of=LABELS)
    assert scene.addresses == ["10.0.0.3:8000"], "what is known is followed, as far as the new selector matches it"


def test_a_pool_that_cannot_be_used_leaves_the_last_good_one_in_force() -> None:
    scene = Scene()
    scene.define(8000)
    scene.pods(pod("a", labels=LABELS))
    scene.define(8000, selector={})
    scene.define(8000, selector={})
    assert scene.addresses == ["10.0.0.1:8000"]
    assert scene.lines == ["the InferencePool cannot be used"]
    assert len(scene.warnings) == 1
    assert scene.warnings[0].startswith("InvalidPool: InferencePool default/p: spec.selector.matchLabels: expected")
    scene.define(8001)
    scene.pods(pod("a", labels=LABELS, ports=(8001,)))
    assert scene.addresses == ["10.0.0.1:8001"]


def test_a_pod_that_cannot_be_used_is_told_once_and_counted_while_it_lasts() -> None:
    """Field report 8: one warning per pod, and a gauge."""
    scene = Scene()
    scene.define(8000)
    odd = pod("odd", labels=LABELS, ports=(8300,))
    scene.pods(odd)
    scene.pods(odd, pod("a", ip="10.0.0.2", labels=LABELS))
    assert scene.unusable == {"no_target_port": 1}
    assert scene.lines == ["a pod cannot be used"]
    assert len(scene.warnings) == 1
    assert "odd" in scene.warnings[0]
    assert "8300" in scene.warnings[0]
    assert "8000" in scene.warnings[0]
    scene.pods(pod("a", ip="10.0.0.2", labels=LABELS))
    assert scene.unusable == {}
    scene.pods(odd)
    assert scene.lines == ["a pod cannot be used"] * 2, "it was gone, so that it is news again"


def test_a_pod_whose_readiness_comes_and_goes_is_told_once() -> None:
    scene = Scene()
    scene.define(8000)
    odd = pod("odd", uid="u", labels=LABELS, ports=(8300,))
    for _ in range(3):
        scene.pods(odd)
        scene.pods(pod("odd", uid="u", labels=LABELS, ports=(8300,), ready=False))
    assert scene.lines == ["a pod cannot be used"]


def test_the_older_pool_gives_one_port() -> None:
    scene = Scene()
    older = inference_pool("p", selector=LABELS, ports=(8000,), version="v1alpha2")
    scene.picture.take_pool(msgspec.convert(older, InferencePoolV1Alpha2), NAME)
    scene.pods(pod("a", labels=LABELS))
    assert scene.addresses == ["10.0.0.1:8000"]


def test_a_selector_from_flags_needs_no_pool() -> None:
    scene = Scene(PoolDefinition.from_flags("app=vllm", (8000,)))
    scene.pods(pod("a", labels=LABELS))
    assert scene.addresses == ["10.0.0.1:8000"]
