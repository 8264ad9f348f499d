from typing import Any

import msgspec

from epp.discovery.kubernetes.objectives import read_priorities
from epp.discovery.kubernetes.objects import InferenceObjective
from tests.fakes import kube_objects

GROUP = "inference.networking.k8s.io"


def objective(name: str, priority: int | None, **changes: Any) -> InferenceObjective:
    return msgspec.convert(kube_objects.inference_objective(name, priority=priority, **changes), InferenceObjective)


def read(*older: InferenceObjective, newer: tuple[InferenceObjective, ...] = ()) -> dict[str, int]:
    return read_priorities(newer, older, pool_name="pool", pool_group=GROUP)


def test_objectives_are_found_by_name_with_their_priority() -> None:
    assert read(objective("chat", 10), objective("batch", -5)) == {"chat": 10, "batch": -5}


def test_an_objective_without_a_priority_has_0() -> None:
    assert read(objective("chat", None)) == {"chat": 0}


def test_objectives_of_other_pools_are_not_ours() -> None:
    assert read(objective("chat", 10, pool="other"), objective("batch", 1)) == {"batch": 1}


def test_objectives_that_name_no_pool_or_one_of_another_group_are_not_ours() -> None:
    raw = kube_objects.inference_objective("chat", priority=1)
    raw["spec"]["poolRef"]["group"] = "inference.networking.x-k8s.io"
    of_another_group = msgspec.convert(raw, InferenceObjective)
    metadata = {"name": "batch", "uid": "u"}

    assert read(of_another_group, msgspec.convert({"metadata": metadata}, InferenceObjective)) == {}
    assert read(msgspec.convert({"metadata": metadata, "spec": {"priority": 1, "poolRef": None}}, InferenceObjective)) == {}


def test_an_objective_that_is_being_deleted_is_gone() -> None:
    raw = kube_objects.inference_objective("chat", priority=1)
    raw["metadata"]["deletionTimestamp"] = "2026-02-03T04:05:06Z"

    assert read(msgspec.convert(raw, InferenceObjective)) == {}


def test_of_two_groups_that_have_one_name_the_newer_group_counts_however_old_its_object_is() -> None:
    older = objective("chat", 1, created="2026-01-02T00:00:00Z"), objective("batch", 2)
    newer = (objective("chat", 3, created="2026-01-01T00:00:00Z"), objective("other", 4))

    assert read(*older, newer=newer) == {"chat": 3, "batch": 2, "other": 4}


def test_an_object_of_the_newer_group_that_is_for_another_pool_hides_nothing() -> None:
    assert read(objective("chat", 1), newer=(objective("chat", 3, pool="other"),)) == {"chat": 1}
