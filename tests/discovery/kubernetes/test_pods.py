from typing import Any

import msgspec
import pytest

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.objects import Pod
from epp.discovery.kubernetes.pods import IpFamily, PodEndpoints, PodReader, UnusableReason
from epp.errors import ConfigError
from epp.pool.endpoint import MetricsTarget, endpoint_address
from tests.fakes import kube_objects

APP = {"app": "vllm"}
DELETED = "2026-02-03T04:05:06Z"


def known_engine(name: str) -> str:
    if name.lower() not in {"vllm", "sglang"}:
        raise ConfigError(f"engine: expected one of vllm, sglang, found {name!r}")
    return name.lower()


def read(raw: dict[str, Any], *ports: int, family: IpFamily = IpFamily.AUTO) -> PodEndpoints:
    """What the pod means to a pool of `app=vllm` with these ports (8000 by default)."""
    reader = PodReader(family=family, known_engine=known_engine)
    return reader.read(msgspec.convert(raw, Pod), PoolDefinition.from_flags("app=vllm", ports or (8000,)))


def pod(**changes: Any) -> dict[str, Any]:
    """A pod `a` that is in rotation but for the changes."""
    return kube_objects.pod("a", **{"uid": "u", "ip": "10.0.0.1", "labels": APP, **changes})


def containers(raw: dict[str, Any], **ports: list[int] | None) -> dict[str, Any]:
    """The pod with these containers instead."""
    raw["spec"]["containers"] = [_container(name, declared) for name, declared in ports.items()]
    return raw


def sidecars(raw: dict[str, Any], *, restart_policy: str | None = "Always", **ports: list[int] | None) -> dict[str, Any]:
    """The pod with these init containers."""
    raw["spec"]["initContainers"] = [
        _container(name, declared) | {"restartPolicy": restart_policy} for name, declared in ports.items()
    ]
    return raw


def _container(name: str, ports: list[int] | None) -> dict[str, Any]:
    return {"name": name, "ports": None if ports is None else [{"containerPort": port} for port in ports]}


def addresses(found: PodEndpoints) -> list[str]:
    return [spec.address for spec in found.specs]


# ── in rotation, or not ──


def test_a_running_and_ready_pod_with_an_address_is_an_endpoint() -> None:
    found = read(pod(restarts=2))

    (spec,) = found.specs
    assert (spec.address, spec.name, spec.incarnation) == ("10.0.0.1:8000", "a-rank-0", "u/2")
    assert (spec.engine, spec.weight, spec.metrics, spec.labels) == (None, 1.0, MetricsTarget(), APP)
    assert (spec.draining, spec.not_ready_reason) == (False, None)
    assert (found.unusable, found.problems) == (None, ())


def test_a_pod_with_a_deletion_mark_drains_even_while_it_is_ready() -> None:
    """Field report 1: from the first sight of the mark nothing new goes there; it is still listed, so streams end well."""
    (spec,) = read(pod(deletion_timestamp=DELETED)).specs

    assert spec.draining
    assert spec.not_ready_reason is None


def test_a_pod_that_is_not_ready_is_listed_with_the_reason() -> None:
    """Field report 2, on the level of one pod: Ready=False takes it out of rotation, whatever its health page says."""
    (spec,) = read(pod(ready=False)).specs

    assert not spec.draining
    assert spec.not_ready_reason == "pod is not Ready: ContainersNotReady: containers with unready status: [server]"


def test_a_pod_that_lost_the_label_is_no_endpoint() -> None:
    """Field report 2: relabelled out of the selector."""
    assert read(pod(labels={"app": "debug"})) == PodEndpoints()
    assert read(pod(labels=None)) == PodEndpoints()


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (None, "pod has no condition Ready yet"),
        ([{"type": "Initialized", "status": "True"}], "pod has no condition Ready yet"),
        ([{"type": "Ready", "status": "Unknown"}], "pod is not Ready: condition is Unknown"),
        ([{"type": "Ready", "status": "False", "reason": "PodFailed"}], "pod is not Ready: PodFailed"),
        ([{"type": "Ready", "status": "False", "reason": "", "message": "a\n b"}], "pod is not Ready: a b"),
        ([{"type": "Ready", "status": "True"}], None),
    ],
)
def test_ready_is_only_what_says_true(conditions: list[dict[str, str]] | None, reason: str | None) -> None:
    raw = pod()
    raw["status"]["conditions"] = conditions

    assert [spec.not_ready_reason for spec in read(raw).specs] == [reason]


@pytest.mark.parametrize(
    ("phase", "reason"), [("Pending", "pod is Pending, not Running"), ("Unknown", "pod is Unknown, not Running")]
)
def test_a_pod_that_does_not_run_is_not_ready(phase: str, reason: str) -> None:
    assert [spec.not_ready_reason for spec in read(pod(phase=phase)).specs] == [reason]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
@pytest.mark.parametrize("deletion_timestamp", [None, DELETED])
def test_a_pod_that_is_over_is_no_endpoint_whatever_else_it_says(phase: str, deletion_timestamp: str | None) -> None:
    """Field report 10: its address may belong to another pod already."""
    assert read(pod(phase=phase, deletion_timestamp=deletion_timestamp)) == PodEndpoints()


def test_a_pod_without_an_address_is_no_endpoint() -> None:
    assert read(pod(ip=None)) == PodEndpoints()
    assert read(pod(ip="")) == PodEndpoints()


def test_a_pod_without_spec_and_status_is_no_endpoint() -> None:
    assert read({"metadata": {"name": "a", "uid": "u", "labels": APP}, "spec": None, "status": None}) == PodEndpoints()


# ── ports ──


def test_each_target_port_is_an_endpoint_of_its_own() -> None:
    """Field report 7, on the level of one pod: ranks are named by their place among the pool's ports."""
    specs = read(pod(ports=(8000, 8001)), 8001, 8000).specs

    assert [(spec.address, spec.name) for spec in specs] == [("10.0.0.1:8001", "a-rank-0"), ("10.0.0.1:8000", "a-rank-1")]


def test_a_pod_that_declares_none_of_the_pools_ports_is_unusable_and_says_so() -> None:
    """Field report 8."""
    found = read(pod(ports=(8300, 9100)), 8000, 8001)

    assert found.specs == ()
    assert found.unusable is not None
    assert (found.unusable.pod, found.unusable.reason) == ("a", UnusableReason.NO_TARGET_PORT)
    assert found.unusable.sentence == (
        "pod a: expected a container port that is a target port of the pool (8000, 8001), found 8300, 9100"
    )


def test_a_pod_that_declares_no_ports_at_all_serves_them() -> None:
    assert addresses(read(pod(ports=()), 8000, 8001)) == ["10.0.0.1:8000", "10.0.0.1:8001"]


def test_a_pod_that_declares_one_of_the_pools_ports_serves_all_of_them() -> None:
    assert addresses(read(pod(ports=(8000, 9100)), 8000, 8001)) == ["10.0.0.1:8000", "10.0.0.1:8001"]


def test_a_container_that_leaves_its_ports_out_may_serve_whatever_its_neighbours_declare() -> None:
    """A proxy or an exporter put into the pod must not take it out of rotation."""
    assert addresses(read(containers(pod(), server=None, exporter=[9100]))) == ["10.0.0.1:8000"]
    assert read(containers(pod(), server=[8300], exporter=[9100])).unusable is not None


def test_a_sidecar_can_serve_the_port_and_an_init_container_cannot() -> None:
    behind_proxy = containers(pod(), server=[8200])

    assert addresses(read(sidecars(behind_proxy, proxy=[8000]))) == ["10.0.0.1:8000"]
    assert read(sidecars(behind_proxy, restart_policy=None, proxy=[8000])).unusable is not None


def test_only_tcp_ports_count() -> None:
    raw = pod()
    raw["spec"]["containers"][0]["ports"] = [{"containerPort": 8300, "protocol": "UDP"}]
    assert addresses(read(raw)) == ["10.0.0.1:8000"]

    raw["spec"]["containers"][0]["ports"].append({"containerPort": 8301, "protocol": None})
    assert read(raw).unusable is not None


@pytest.mark.parametrize("key", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
def test_the_annotation_for_active_ports_narrows_the_ranks_and_keeps_their_names(key: str) -> None:
    specs = read(pod(ports=(), annotations={key: "8002, 8001,9999"}), 8000, 8001, 8002).specs

    assert [(spec.address, spec.name) for spec in specs] == [("10.0.0.1:8001", "a-rank-1"), ("10.0.0.1:8002", "a-rank-2")]


def test_the_newer_name_of_the_annotation_beats_the_older_one() -> None:
    both = {"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}

    assert addresses(read(pod(ports=(), annotations=both), 8000, 8001)) == ["10.0.0.1:8001"]


@pytest.mark.parametrize("text", ["", "http", "8000;8001", "8000,", "0", "70000", "+8000"])
def test_active_ports_that_are_none_make_the_pod_unusable(text: str) -> None:
    unusable = read(pod(annotations={"llm-d.ai/active-ports": text})).unusable

    assert unusable is not None
    assert unusable.reason is UnusableReason.BAD_ANNOTATION
    assert unusable.sentence == f'pod a: annotation llm-d.ai/active-ports: expected ports such as 8000,8001, found "{text}"'


def test_active_ports_that_are_none_of_the_pools_leave_no_endpoint() -> None:
    unusable = read(pod(annotations={"llm-d.ai/active-ports": "9000,8500"})).unusable

    assert unusable is not None
    assert unusable.reason is UnusableReason.NO_TARGET_PORT
    assert unusable.sentence.endswith("expected a target port of the pool (8000), found 8500, 9000")


@pytest.mark.parametrize("changes", [{"ready": False}, {"deletion_timestamp": DELETED}, {"phase": "Pending"}, {"ip": None}])
def test_only_a_pod_that_would_else_be_in_rotation_is_told_as_unusable(changes: dict[str, Any]) -> None:
    assert read(pod(ports=(8300,), **changes)) == PodEndpoints()


# ── addresses ──


def test_an_ipv6_address_is_normalised_and_in_brackets() -> None:
    """Field report 11: the header is exactly [fd00::7]:8000."""
    assert addresses(read(pod(ip="FD00:0:0::7"))) == ["[fd00::7]:8000"]


@pytest.mark.parametrize("ip", ["10.0.0.1", "FD00:0:0::7", "::1"])
def test_addresses_are_written_as_everywhere_else(ip: str) -> None:
    assert addresses(read(pod(ip=ip), 8000, 8001)) == [endpoint_address(ip, 8000), endpoint_address(ip, 8001)]


@pytest.mark.parametrize(
    ("family", "first", "address"),
    [
        (IpFamily.AUTO, "10.0.0.1", "10.0.0.1:8000"),
        (IpFamily.AUTO, "fd00::7", "[fd00::7]:8000"),
        (IpFamily.IPV4, "fd00::7", "10.0.0.1:8000"),
        (IpFamily.IPV6, "10.0.0.1", "[fd00::7]:8000"),
    ],
)
def test_of_a_dual_stack_pod_the_family_can_be_chosen(family: IpFamily, first: str, address: str) -> None:
    """Field report 11."""
    raw = pod(ip=first, ips=sorted(["10.0.0.1", "fd00::7"], key=lambda ip: ip != first))

    assert addresses(read(raw, family=family)) == [address]


@pytest.mark.parametrize(
    ("family", "ip", "sentence"),
    [
        (IpFamily.IPV6, "10.0.0.1", 'pod a: expected an IPv6 address, found "10.0.0.1"'),
        (IpFamily.IPV4, "fd00::7", 'pod a: expected an IPv4 address, found "fd00::7"'),
        (IpFamily.AUTO, "fe80::1%eth0", 'pod a: expected an IPv4 or IPv6 address, found "fe80::1%eth0"'),
        (IpFamily.AUTO, "169.254.169.254", 'pod a: expected an IPv4 or IPv6 address, found "169.254.169.254"'),
        (IpFamily.AUTO, "0.0.0.0", 'pod a: expected an IPv4 or IPv6 address, found "0.0.0.0"'),
        (IpFamily.AUTO, "::", 'pod a: expected an IPv4 or IPv6 address, found "::"'),
        (IpFamily.AUTO, "ff02::1", 'pod a: expected an IPv4 or IPv6 address, found "ff02::1"'),
        (IpFamily.AUTO, "255.255.255.255", 'pod a: expected an IPv4 or IPv6 address, found "255.255.255.255"'),
        (IpFamily.IPV6, "::ffff:10.0.0.1", 'pod a: expected an IPv6 address, found "::ffff:10.0.0.1"'),
        (IpFamily.AUTO, "10.0.0.256", 'pod a: expected an IPv4 or IPv6 address, found "10.0.0.256"'),
    ],
)
def test_a_pod_without_an_address_of_the_family_is_unusable(family: IpFamily, ip: str, sentence: str) -> None:
    unusable = read(pod(ip=ip), family=family).unusable

    assert unusable is not None
    assert (unusable.reason, unusable.sentence) == (UnusableReason.NO_ADDRESS_OF_FAMILY, sentence)


def test_ipv4_written_as_ipv6_is_ipv4() -> None:
    assert addresses(read(pod(ip="::ffff:10.0.0.1"))) == ["10.0.0.1:8000"]


# ── incarnations ──


def test_a_restart_and_a_new_uid_are_other_incarnations() -> None:
    """Field report 10: state is keyed by pod and container restart, so that neither load nor prefixes are inherited."""
    found = [read(raw).specs[0].incarnation for raw in (pod(), pod(restarts=1), pod(uid="v"))]

    assert found == ["u/0", "u/1", "v/0"]


def statuses(**restarts: int) -> list[dict[str, Any]]:
    return [{"name": name, "restartCount": count} for name, count in restarts.items()]


def test_the_restarts_are_those_of_the_container_that_declares_the_port() -> None:
    raw = containers(pod(), server=[8000], other=[8001], logs=None)
    raw["status"]["containerStatuses"] = statuses(logs=100, server=2, other=3)

    assert [spec.incarnation for spec in read(raw, 8000, 8001).specs] == ["u/2", "u/3"]


def test_where_no_container_declares_the_port_all_restarts_count() -> None:
    raw = containers(pod(), server=None, logs=None)
    raw["status"]["containerStatuses"] = statuses(server=2, logs=3)

    assert [spec.incarnation for spec in read(raw).specs] == ["u/5"]


def test_behind_a_sidecar_the_restarts_of_the_server_count_too() -> None:
    raw = sidecars(containers(pod(), server=[8200]), proxy=[8000])
    raw["status"]["containerStatuses"] = statuses(server=2)
    raw["status"]["initContainerStatuses"] = statuses(proxy=1)

    assert [spec.incarnation for spec in read(raw).specs] == ["u/3"]


def test_without_container_statuses_there_was_no_restart() -> None:
    raw = pod()
    raw["status"]["containerStatuses"] = None

    assert [spec.incarnation for spec in read(raw).specs] == ["u/0"]


# ── marks ──


@pytest.mark.parametrize("key", ["inference-epp/engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"])
@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_the_engine_is_named_by_a_label_or_an_annotation(key: str, place: str) -> None:
    raw = pod()
    raw["metadata"].setdefault(place, {})[key] = "SGLang"

    assert [spec.engine for spec in read(raw).specs] == ["sglang"]


def test_our_own_name_for_the_engine_comes_first_and_of_one_name_the_label() -> None:
    labels = {**APP, "llm-d.ai/engine-type": "vllm"}

    assert read(pod(labels=labels, annotations={"inference-epp/engine": "sglang"})).specs[0].engine == "sglang"
    assert read(pod(labels=labels, annotations={"llm-d.ai/engine-type": "sglang"})).specs[0].engine == "vllm"


@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_the_weight_is_given_by_a_label_or_an_annotation(place: str) -> None:
    raw = pod()
    raw["metadata"].setdefault(place, {})["inference-epp/weight"] = "2.5"

    assert [spec.weight for spec in read(raw).specs] == [2.5]


def test_annotations_say_where_the_metrics_are() -> None:
    marks = {"metrics-port": "9400", "metrics-path": "/prometheus", "metrics-scheme": "https"}

    (spec,) = read(pod(annotations={f"inference-epp/{key}": text for key, text in marks.items()})).specs

    assert spec.metrics == MetricsTarget(port=9400, path="/prometheus", scheme="https")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("engine", "gpt", "expected one of vllm, sglang, found 'gpt'"),
        ("weight", "0", 'expected a number greater than 0, found "0"'),
        ("weight", "nan", 'expected a number greater than 0, found "nan"'),
        ("weight", "heavy", 'expected a number greater than 0, found "heavy"'),
        ("metrics-port", "0", 'expected a port from 1 to 65535, found "0"'),
        ("metrics-port", "metrics", 'expected a port from 1 to 65535, found "metrics"'),
        ("metrics-path", "metrics", 'expected a path such as /metrics, found "metrics"'),
        ("metrics-scheme", "ftp", 'expected one of http, https, found "ftp"'),
    ],
)
def test_a_mark_that_cannot_be_followed_is_told_and_the_pod_is_used_without_it(key: str, text: str, expected: str) -> None:
    found = read(pod(annotations={f"inference-epp/{key}": text}))

    assert [(problem.pod, problem.sentence) for problem in found.problems] == [
        ("a", f"pod a: annotation inference-epp/{key}: {expected}")
    ]
    (spec,) = found.specs
    assert (spec.engine, spec.weight, spec.metrics) == (None, 1.0, MetricsTarget())


def test_every_bad_mark_of_a_pod_is_told() -> None:
    found = read(pod(labels={**APP, "inference-epp/weight": "x"}, annotations={"inference-epp/metrics-port": "y"}))

    assert [problem.sentence.split(": ")[1] for problem in found.problems] == [
        "label inference-epp/weight",
        "annotation inference-epp/metrics-port",
    ]
