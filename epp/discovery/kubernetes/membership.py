"""All pods and the definition of the pool: the endpoints there are. No input or output here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.objects import Pod
from epp.discovery.kubernetes.pods import IpFamily, PodEndpoints, PodProblem, PodReader, UnusablePod, UnusableReason
from epp.pool.endpoint import EndpointAddress, EndpointSpec


@dataclass(frozen=True, slots=True)
class MembershipResult:
    """What the pool consists of.

    Attributes:
        specs: Endpoints by name of the pod, then by rank; each address once.
        unusable: Pods that would be in rotation but for one thing, by name.
        problems: What is wrong in the labels and annotations of pods that are used without it, by name.
    """

    specs: tuple[EndpointSpec, ...]
    unusable: tuple[UnusablePod, ...]
    problems: tuple[PodProblem, ...]


class Membership:
    """Computes the membership, again and again.

    It remembers what it made of each pod, and a pod that did not change costs no more than a look at its version: in a
    pool of a thousand pods most events are about one.
    """

    def __init__(self, *, family: IpFamily, known_engine: Callable[[str], str]) -> None:
        """Args:
        known_engine: See `PodReader`.
        """
        self._reader = PodReader(family=family, known_engine=known_engine)
        self._definition: PoolDefinition | None = None
        self._known: dict[str, _Known] = {}
        self._in_order: tuple[str, ...] = ()

    def specs(self, pods: Mapping[str, Pod], definition: PoolDefinition) -> MembershipResult:
        """The pool as it is with these pods (by uid; others than the selector's do no harm) and this definition."""
        known = self._known if definition == self._definition else {}
        fresh = {uid: self._read(pod, known.get(uid), definition) for uid, pod in pods.items()}
        if fresh.keys() != self._known.keys():
            self._in_order = tuple(sorted(fresh, key=lambda uid: (fresh[uid].pod.metadata.name, uid)))
        self._known, self._definition = fresh, definition
        return _result([fresh[uid] for uid in self._in_order])

    def _read(self, pod: Pod, known: "_Known | None", definition: PoolDefinition) -> "_Known":
        if known is not None and (known.pod is pod or _same_version(known.pod, pod)):
            known.pod = pod  # not the old one: after a new list that would keep all pods twice
            return known
        return _Known(pod, self._reader.read(pod, definition))


def _same_version(before: Pod, after: Pod) -> bool:
    version = after.metadata.resource_version
    return version != "" and version == before.metadata.resource_version


class _Known:
    """What was made of a pod."""

    __slots__ = ("endpoints", "pod")

    def __init__(self, pod: Pod, endpoints: PodEndpoints) -> None:
        self.pod = pod
        self.endpoints = endpoints


def _result(members: Sequence[_Known]) -> MembershipResult:
    specs = [spec for member in members for spec in member.endpoints.specs]
    unusable = [member.endpoints.unusable for member in members if member.endpoints.unusable is not None]
    problems = [problem for member in members for problem in member.endpoints.problems]
    if len({spec.address for spec in specs}) < len(specs):
        specs, losers = _each_address_once(members)
        unusable = sorted([*unusable, *losers], key=lambda each: each.pod)
    return MembershipResult(tuple(specs), tuple(unusable), tuple(problems))


def _each_address_once(members: Sequence[_Known]) -> tuple[list[EndpointSpec], list[UnusablePod]]:
    """What stays where pods have the same address, and the pods in rotation that have to go without it.

    Two pods have one where an address was given to a new pod before the old one is gone, or on the network of one node.
    A pod in rotation comes before one that is not Ready, and that before one that drains; of equals the newest, or the
    first by name.
    """
    owners: dict[EndpointAddress, tuple[EndpointSpec, Pod]] = {}
    for member in members:
        for spec in member.endpoints.specs:
            owner = owners.get(spec.address)
            if owner is None or _claim(spec, member.pod) > _claim(*owner):
                owners[spec.address] = spec, member.pod
    kept: list[EndpointSpec] = []
    losers: list[UnusablePod] = []
    for member in members:
        name, lost = member.pod.metadata.name, []
        for spec in member.endpoints.specs:
            if owners[spec.address][0] is spec:
                kept.append(spec)
            elif _standing(spec) == _IN_ROTATION:
                lost.append(spec.address)
        if lost:
            other = owners[lost[0]][1].metadata.name
            sentence = f"pod {name}: expected an address of its own, found {', '.join(lost)} of pod {other}, too"
            losers.append(UnusablePod(name, UnusableReason.ADDRESS_TAKEN, sentence))
    return kept, losers


_IN_ROTATION = 2


def _standing(spec: EndpointSpec) -> int:
    return 0 if spec.draining else _IN_ROTATION if spec.not_ready_reason is None else 1


def _claim(spec: EndpointSpec, pod: Pod) -> tuple[int, str]:
    return _standing(spec), pod.metadata.creation_timestamp or ""
