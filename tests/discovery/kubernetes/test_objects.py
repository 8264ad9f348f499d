import json
from typing import Any, TypeVar

import msgspec
import pytest

from epp.discovery.kubernetes.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    InferencePoolV1Alpha2,
    Pod,
    PoolReference,
)
from tests.fakes import kube_objects

T = TypeVar("T")
V1_GROUP = "inference.networking.k8s.io"


def decode(raw: dict[str, Any], kind: type[T]) -> T:
    """As from the API server."""
    return msgspec.json.decode(json.dumps(raw), type=kind)


def test_of_a_pod_everything_that_is_read_is_there() -> None:
    raw = kube_objects.pod("a", uid="u", ip="10.0.0.1", ips=["10.0.0.1", "fd00::1"], labels={"app": "x"}, restarts=3)
    raw["metadata"]["resourceVersion"] = "17"

    pod = decode(raw, Pod)

    assert (pod.metadata.name, pod.metadata.uid, pod.metadata.resource_version) == ("a", "u", "17")
    assert (pod.metadata.labels, pod.metadata.annotations, pod.metadata.deletion_timestamp) == ({"app": "x"}, None, None)
    assert pod.spec is not None
    assert pod.spec.node_name == "node-1"
    assert [(each.name, [p.container_port for p in each.ports or ()]) for each in pod.spec.containers or ()] == [
        ("server", [8000])
    ]
    assert pod.status is not None
    assert (pod.status.phase, pod.status.pod_ip) == ("Running", "10.0.0.1")
    assert [each.ip for each in pod.status.pod_ips or ()] == ["10.0.0.1", "fd00::1"]
    assert [each.restart_count for each in pod.status.container_statuses or ()] == [3]


def test_the_deletion_mark_is_read() -> None:
    pod = decode(kube_objects.pod("a", deletion_timestamp="2026-01-02T03:04:05Z"), Pod)

    assert pod.metadata.deletion_timestamp == "2026-01-02T03:04:05Z"


def test_what_is_null_is_as_if_it_were_absent() -> None:
    metadata = {"name": "a", "uid": "u", "labels": None, "annotations": None, "creationTimestamp": None}
    empty = decode({"metadata": {"name": "a", "uid": "u"}}, Pod)

    assert decode({"metadata": metadata, "spec": None, "status": None}, Pod) == empty
    nulls = {
        "metadata": metadata,
        "spec": {"containers": None, "initContainers": None, "nodeName": None},
        "status": {"phase": None, "podIP": None, "podIPs": None, "conditions": None, "containerStatuses": None},
    }
    assert decode(nulls, Pod) == decode({"metadata": metadata, "spec": {}, "status": {}}, Pod)


def test_fields_that_are_not_read_are_skipped_whatever_they_are() -> None:
    raw = kube_objects.pod("a", uid="u")
    odd = {**raw, "future": [{"x": None}], "spec": {**raw["spec"], "overhead": {"cpu": "1"}, "volumes": 7}}

    assert decode(odd, Pod) == decode(raw, Pod)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": "a", "uid": "u", "labels": ["app"]}},
        {"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": [{"name": "c", "ports": [{"containerPort": "http"}]}]}},
        {"metadata": {"name": "a", "uid": "u"}, "status": {"podIP": 7}},
        {"metadata": {"name": "a", "uid": "u"}, "status": "Running"},
    ],
)
def test_an_object_with_values_of_wrong_types_is_an_error_of_its_own(raw: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(raw, Pod)


def test_both_versions_of_the_pool_are_read() -> None:
    v1 = decode(kube_objects.inference_pool("p", selector={"app": "x"}, ports=[8000, 8001], app_protocol="http"), InferencePool)
    older = decode(
        kube_objects.inference_pool("p", selector={"app": "x"}, ports=[8000], version="v1alpha2"), InferencePoolV1Alpha2
    )

    assert v1.spec is not None
    assert v1.spec.selector is not None
    assert (v1.spec.selector.match_labels, v1.spec.app_protocol) == ({"app": "x"}, "http")
    assert [port.number for port in v1.spec.target_ports or ()] == [8000, 8001]
    assert older.spec is not None
    assert (older.spec.selector, older.spec.target_port_number) == ({"app": "x"}, 8000)


def test_objectives_and_rewrites_are_read() -> None:
    objective = decode(kube_objects.inference_objective("o", priority=-3, pool="p"), InferenceObjective)
    rewrite = decode(kube_objects.inference_model_rewrite("r", rules=[(["m"], [("n", 2)])], pool="p"), InferenceModelRewrite)

    assert objective.spec is not None
    assert objective.spec.pool_ref is not None
    assert (objective.spec.priority, objective.spec.pool_ref.name, objective.spec.pool_ref.group) == (-3, "p", V1_GROUP)
    assert rewrite.spec is not None
    assert rewrite.spec.rules is not None
    (rule,) = rewrite.spec.rules
    assert [match.model.value for match in rule.matches or () if match.model is not None] == ["m"]
    assert [(target.model_rewrite, target.weight) for target in rule.targets or ()] == [("n", 2)]


@pytest.mark.parametrize(
    ("reference", "is_it"),
    [
        (PoolReference("p"), True),
        (PoolReference("p", group=""), True),
        (PoolReference("p", group=V1_GROUP, kind="InferencePool"), True),
        (PoolReference("q"), False),
        (PoolReference("p", group="inference.networking.x-k8s.io"), False),
        (PoolReference("p", kind="Service"), False),
    ],
)
def test_a_reference_names_a_pool_by_name_and_where_they_are_given_by_group_and_kind(
    reference: PoolReference, is_it: bool
) -> None:
    assert reference.names("p", V1_GROUP) is is_it
