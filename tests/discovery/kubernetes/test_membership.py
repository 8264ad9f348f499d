import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.membership import Membership, MembershipResult
from epp.discovery.kubernetes.objects import Pod
from epp.discovery.kubernetes.pods import IpFamily, PodReader, UnusableReason
from tests.fakes import kube_objects

APP = {"app": "vllm"}
DELETED = "2026-02-03T04:05:06Z"
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ONE_PORT = PoolDefinition.from_flags("app=vllm", (8000,))
TWO_PORTS = PoolDefinition.from_flags("app=vllm", (8000, 8001))


def new_membership(family: IpFamily = IpFamily.AUTO) -> Membership:
    return Membership(family=family, known_engine=lambda name: name)


def pod(name: str, ip: str = "10.0.0.1", *, version: str = "", **changes: Any) -> Pod:
    raw = kube_objects.pod(name, ip=ip, **{"uid": f"uid-{name}", "labels": APP, "ports": (), **changes})
    raw["metadata"]["resourceVersion"] = version
    return msgspec.json.decode(json.dumps(raw), type=Pod)


def by_uid(*pods: Pod) -> dict[str, Pod]:
    return {each.metadata.uid: each for each in pods}


def members(*pods: Pod, definition: PoolDefinition = ONE_PORT) -> MembershipResult:
    return new_membership().specs(by_uid(*pods), definition)


def names(result: MembershipResult) -> list[str]:
    return [spec.name for spec in result.specs]


def test_endpoints_are_in_the_order_of_pod_names_then_of_ranks() -> None:
    found = members(pod("b", "10.0.0.2"), pod("a", "10.0.0.1"), definition=TWO_PORTS)

    assert names(found) == ["a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1"]


def test_pods_of_others_do_no_harm() -> None:
    assert names(members(pod("a"), pod("other", "10.0.0.2", labels={"app": "x"}))) == ["a-rank-0"]


def test_no_pods_are_no_endpoints() -> None:
    assert members() == MembershipResult((), (), ())


def test_after_a_change_of_the_ports_the_endpoints_are_those_of_the_new_ones() -> None:
    """Field report 6: from several target ports to one; nothing of the removed ports stays."""
    membership, pods = new_membership(), by_uid(pod("a", "10.0.0.1", version="1"), pod("b", "10.0.0.2", version="2"))
    assert len(membership.specs(pods, TWO_PORTS).specs) == 4

    assert [spec.address for spec in membership.specs(pods, ONE_PORT).specs] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert len(membership.specs(pods, TWO_PORTS).specs) == 4


def test_after_a_change_of_the_selector_the_endpoints_are_those_that_match_the_new_one() -> None:
    membership = new_membership()
    pods = by_uid(pod("a", "10.0.0.1", version="1"), pod("b", "10.0.0.2", version="2", labels={"app": "sglang"}))
    assert names(membership.specs(pods, ONE_PORT)) == ["a-rank-0"]

    assert names(membership.specs(pods, PoolDefinition.from_flags("app=sglang", (8000,)))) == ["b-rank-0"]


def test_a_pod_that_is_not_ready_or_relabelled_leaves_and_comes_back() -> None:
    """Field report 2, as far as the specs go."""
    membership = new_membership()
    a, b, c = pod("a", "10.0.0.1", version="1"), pod("b", "10.0.0.2", version="2"), pod("c", "10.0.0.3", version="3")
    assert ready(membership.specs(by_uid(a, b, c), ONE_PORT)) == ["a-rank-0", "b-rank-0", "c-rank-0"]

    a2 = pod("a", "10.0.0.1", version="4", ready=False)
    b2 = pod("b", "10.0.0.2", version="5", labels={"app": "debug"})
    assert ready(membership.specs(by_uid(a2, b2, c), ONE_PORT)) == ["c-rank-0"]

    a3, b3 = pod("a", "10.0.0.1", version="6"), pod("b", "10.0.0.2", version="7")
    assert ready(membership.specs(by_uid(a3, b3, c), ONE_PORT)) == ["a-rank-0", "b-rank-0", "c-rank-0"]


def ready(result: MembershipResult) -> list[str]:
    return [spec.name for spec in result.specs if not spec.draining and spec.not_ready_reason is None]


def test_pods_that_cannot_be_used_and_bad_marks_are_told_by_name_of_the_pod() -> None:
    """Field report 8: what the gauge and the warning are made of."""
    found = members(
        pod("c", "10.0.0.3", annotations={"inference-epp/weight": "none"}),
        pod("b", "10.0.0.2", ports=(8300,)),
        pod("a", "10.0.0.1", annotations={"llm-d.ai/active-ports": "x"}),
    )

    assert names(found) == ["c-rank-0"]
    assert [(each.pod, each.reason) for each in found.unusable] == [
        ("a", UnusableReason.BAD_ANNOTATION),
        ("b", UnusableReason.NO_TARGET_PORT),
    ]
    assert [each.pod for each in found.problems] == ["c"]


# ── one address, two pods ──


def test_an_address_that_was_given_to_a_new_pod_is_the_new_pods() -> None:
    """Field report 10: the old pod drains still, its address serves another one already."""
    old, new = pod("a", created=EARLIER, deletion_timestamp=DELETED), pod("b", created=LATER)

    found = members(old, new)

    assert [(spec.name, spec.incarnation) for spec in found.specs] == [("b-rank-0", "uid-b/0")]
    assert found.unusable == ()


def test_a_pod_that_failed_has_no_claim_to_its_address() -> None:
    """Field report 10."""
    failed, other = pod("a", created=LATER, phase="Failed"), pod("b", created=EARLIER)

    found = members(failed, other)

    assert names(found) == ["b-rank-0"]
    assert found.unusable == ()


def test_of_two_pods_in_rotation_with_one_address_the_newest_has_it_and_the_other_is_told() -> None:
    found = members(pod("a", created=LATER), pod("b", created=EARLIER), definition=TWO_PORTS)

    assert names(found) == ["a-rank-0", "a-rank-1"]
    (unusable,) = found.unusable
    assert (unusable.pod, unusable.reason) == ("b", UnusableReason.ADDRESS_TAKEN)
    assert unusable.sentence == ("pod b: expected an address of its own, found 10.0.0.1:8000, 10.0.0.1:8001 of pod a, too")


def test_a_pod_in_rotation_keeps_its_address_from_a_newer_one_that_is_not_ready() -> None:
    """On the network of one node the second server cannot start as long as the first one has the port."""
    found = members(pod("a", created=EARLIER), pod("b", created=LATER, ready=False))

    assert names(found) == ["a-rank-0"]
    assert found.unusable == ()


def test_only_the_ports_that_both_have_are_in_dispute() -> None:
    older = pod("a", created=EARLIER, annotations={"llm-d.ai/active-ports": "8000,8001"})
    newer = pod("b", created=LATER, annotations={"llm-d.ai/active-ports": "8001"})

    found = members(older, newer, definition=TWO_PORTS)

    assert [(spec.name, spec.address) for spec in found.specs] == [("a-rank-0", "10.0.0.1:8000"), ("b-rank-1", "10.0.0.1:8001")]
    assert [each.pod for each in found.unusable] == ["a"]


# ── remembering ──


class CountingEngines:
    """Counts how often pods are read: each has a label that names its engine."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, name: str) -> str:
        self.calls += 1
        return name


@pytest.fixture
def engines() -> CountingEngines:
    return CountingEngines()


def hundred(*, version: str) -> dict[str, Pod]:
    labels = {**APP, "inference-epp/engine": "vllm"}
    return by_uid(*(pod(f"p{number:03}", f"10.0.0.{number}", version=version, labels=labels) for number in range(100)))


def test_only_what_changed_is_read_again(engines: CountingEngines) -> None:
    membership = Membership(family=IpFamily.AUTO, known_engine=engines)
    pods = hundred(version="1")
    membership.specs(pods, ONE_PORT)
    assert engines.calls == 100

    changed = pod("p007", "10.0.0.7", version="2", ready=False, labels={**APP, "inference-epp/engine": "vllm"})
    found = membership.specs({**pods, changed.metadata.uid: changed}, ONE_PORT)

    assert engines.calls == 101
    assert [spec.name for spec in found.specs if spec.not_ready_reason is not None] == ["p007-rank-0"]


def test_after_a_new_list_pods_of_the_same_version_are_not_read_again(engines: CountingEngines) -> None:
    membership = Membership(family=IpFamily.AUTO, known_engine=engines)
    before = membership.specs(hundred(version="1"), ONE_PORT)

    assert membership.specs(hundred(version="1"), ONE_PORT) == before
    assert engines.calls == 100


def test_a_pod_without_a_version_is_the_same_only_if_it_is_the_same_object(engines: CountingEngines) -> None:
    membership = Membership(family=IpFamily.AUTO, known_engine=engines)
    pods = hundred(version="")
    membership.specs(pods, ONE_PORT)

    membership.specs(pods, ONE_PORT)
    assert engines.calls == 100
    membership.specs(hundred(version=""), ONE_PORT)
    assert engines.calls == 200


def test_a_pod_of_the_same_name_with_another_uid_is_another_pod() -> None:
    """Field reports 9 and 10: deleted and added again, back to back."""
    membership = new_membership()
    membership.specs(by_uid(pod("a", uid="u1", version="1")), ONE_PORT)

    for number in range(2, 200):
        found = membership.specs(by_uid(pod("a", uid=f"u{number}", version=str(number))), ONE_PORT)
        assert [(spec.name, spec.incarnation) for spec in found.specs] == [("a-rank-0", f"u{number}/0")]


# ── whatever the pods are ──

DEFINITIONS = st.builds(
    PoolDefinition.from_flags,
    st.sampled_from(["app=vllm", "app in (vllm,x)", "app!=vllm"]),
    st.lists(st.integers(8000, 8003), min_size=1, max_size=4, unique=True),
)


@st.composite
def random_pods(draw: st.DrawFn) -> list[Pod]:
    return [
        pod(
            f"p{number}",
            draw(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "FD00::0:1", "junk"])),
            ips=draw(st.sampled_from([None, ["10.0.0.1", "fd00::1"]])),
            version=draw(st.sampled_from(["", str(number)])),
            labels=draw(st.sampled_from([APP, {"app": "x"}, None])),
            annotations=draw(st.sampled_from([None, {"llm-d.ai/active-ports": "8000"}, {"llm-d.ai/active-ports": "?"}])),
            ports=draw(st.sampled_from([(), (8000,), (8001, 8002), (9000,)])),
            ready=draw(st.booleans()),
            phase=draw(st.sampled_from(["Running", "Running", "Pending", "Failed"])),
            created=draw(st.sampled_from([EARLIER, LATER])),
            deletion_timestamp=draw(st.sampled_from([None, None, DELETED])),
        )
        for number in draw(st.sets(st.integers(0, 9), max_size=8))
    ]


def is_in_rotation(raw: Pod, definition: PoolDefinition) -> bool:
    status = raw.status
    assert status is not None
    return (
        status.phase == "Running"
        and any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())
        and raw.metadata.deletion_timestamp is None
        and definition.selector.matches(raw.metadata.labels or {})
    )


@given(random_pods(), DEFINITIONS, st.sampled_from(IpFamily))
def test_each_address_is_there_once_and_only_pods_in_rotation_are_ready(
    pods: list[Pod], definition: PoolDefinition, family: IpFamily
) -> None:
    found = new_membership(family).specs(by_uid(*pods), definition)

    assert len({spec.address for spec in found.specs}) == len({spec.name for spec in found.specs}) == len(found.specs)
    rotation = {each.metadata.name for each in pods if is_in_rotation(each, definition)}
    served = {name.partition("-rank-")[0] for name in ready(found)}
    assert served <= rotation
    assert {each.pod for each in found.unusable} <= rotation
    assert rotation <= served | {each.pod for each in found.unusable}


@given(random_pods(), DEFINITIONS, st.randoms(use_true_random=False))
def test_the_order_of_the_pods_does_not_matter(pods: list[Pod], definition: PoolDefinition, shuffle: random.Random) -> None:
    before = members(*pods, definition=definition)

    shuffle.shuffle(pods)

    assert members(*pods, definition=definition) == before


@given(st.lists(st.tuples(random_pods(), DEFINITIONS), max_size=5))
def test_what_is_remembered_never_shows(history: list[tuple[list[Pod], PoolDefinition]]) -> None:
    membership, versions = new_membership(), Versions()

    for pods, definition in history:
        now = by_uid(*map(versions.stamp, pods))
        assert membership.specs(now, definition) == new_membership().specs(now, definition)


class Versions:
    """Gives pods versions as an API server does: the same one as long as the content is the same."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def stamp(self, each: Pod) -> Pod:
        if not each.metadata.resource_version:
            return each
        content = msgspec.json.encode(each)
        version = self._seen.setdefault(content, str(len(self._seen) + 1))
        return msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, resource_version=version))


def test_the_result_of_one_pod_is_what_the_reader_makes_of_it() -> None:
    each = pod("a", version="1")
    reader = PodReader(family=IpFamily.AUTO, known_engine=lambda name: name)

    assert members(each).specs == reader.read(each, ONE_PORT).specs
