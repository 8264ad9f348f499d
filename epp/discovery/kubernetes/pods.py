"""One pod: the endpoints that it stands for, or why it cannot be used. No input or output here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar

from epp.config.wording import quote, shorten
from epp.config.yaml_tree import YamlNode, YamlScalar
from epp.discovery.endpoint_values import FaultError, read_path, read_port, read_scheme, read_weight
from epp.discovery.host_port import parse_ip, parse_port
from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.objects import Container, Pod, PodSpec, PodStatus
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointAddress, EndpointSpec, MetricsTarget

ACTIVE_PORTS_KEYS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations that narrow the ranks of one pod; the first that is there counts (as in the reference pickers)."""
ENGINE_KEYS = ("inference-epp/engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Labels or annotations that name the engine; the first that is there counts, and of one name the label."""
WEIGHT_KEYS = ("inference-epp/weight",)
METRICS_PORT_KEY = "inference-epp/metrics-port"
METRICS_PATH_KEY = "inference-epp/metrics-path"
METRICS_SCHEME_KEY = "inference-epp/metrics-scheme"

_BROADCAST = IPv4Address("255.255.255.255")
_OVER_PHASES = frozenset({"Failed", "Succeeded"})

T = TypeVar("T")


class IpFamily(Enum):
    """Which address of a pod is used; AUTO takes the one of the cluster's first family."""

    AUTO = "auto"
    IPV4 = "ipv4"
    IPV6 = "ipv6"


class UnusableReason(Enum):
    """Why a pod that is Ready and that the selector matches gets nothing."""

    NO_TARGET_PORT = "no_target_port"
    BAD_ANNOTATION = "bad_annotation"
    ADDRESS_TAKEN = "address_taken"
    NO_ADDRESS_OF_FAMILY = "no_address_of_family"


@dataclass(frozen=True, slots=True)
class UnusablePod:
    """A pod that would be in rotation but for one thing.

    Attributes:
        pod: Its name.
        sentence: What was expected and what was found; names the pod.
    """

    pod: str
    reason: UnusableReason
    sentence: str


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Something on a pod that is not followed; the pod is used without it."""

    pod: str
    sentence: str


@dataclass(frozen=True, slots=True)
class PodEndpoints:
    """What one pod stands for; all empty when it is none of the pool's, or not there yet, or over.

    Attributes:
        specs: An endpoint a target port, in the order of these.
        unusable: Why there is none although the pod is in rotation.
        problems: What is wrong in its labels and annotations besides.
    """

    specs: tuple[EndpointSpec, ...] = ()
    unusable: UnusablePod | None = None
    problems: tuple[PodProblem, ...] = ()


_NOTHING = PodEndpoints()


class PodReader:
    """Makes endpoints of pods."""

    def __init__(self, *, family: IpFamily, known_engine: Callable[[str], str]) -> None:
        """Args:
        known_engine: Gives the proper name of an engine; raises ConfigError or ValueError with `expected …, found …`
            when there is no such engine.
        """
        self._family = family
        self._known_engine = known_engine

    def read(self, pod: Pod, definition: PoolDefinition) -> PodEndpoints:
        """The endpoints of one pod.

        In rotation: phase Running, condition Ready true, no deletion mark, an address, and selector and ports match. A
        pod with a deletion mark drains, be it Ready or not; one that is not Ready is listed with the reason; one that
        is over (Failed, Succeeded) is not there at all, since its address may belong to another pod by now.
        """
        status = pod.status or PodStatus()
        ips = _ips(status)
        if not ips or status.phase in _OVER_PHASES or not definition.selector.matches(pod.metadata.labels or {}):
            return _NOTHING
        draining = pod.metadata.deletion_timestamp is not None
        not_ready_reason = _not_ready_reason(status)
        try:
            ports = _ports_in_use(pod, definition)
            ip = self._ip(ips)
        except _UnusableError as found:
            if draining or not_ready_reason is not None:
                return _NOTHING
            name = pod.metadata.name
            return PodEndpoints(unusable=UnusablePod(name, found.reason, f"pod {name}: {found.sentence}"))
        marks = _Marks(pod)
        engine, weight, metrics = marks.engine(self._known_engine), marks.weight(), marks.metrics()
        return PodEndpoints(
            specs=tuple(
                EndpointSpec(
                    address=_address(ip, port),
                    name=f"{pod.metadata.name}-rank-{rank}",
                    incarnation=f"{pod.metadata.uid}/{_restarts(pod, port)}",
                    engine=engine,
                    metrics=metrics,
                    labels=pod.metadata.labels or {},
                    weight=weight,
                    draining=draining,
                    draining_reason="the pod is being deleted" if draining else None,
                    not_ready_reason=not_ready_reason,
                )
                for rank, port in ports
            ),
            problems=tuple(marks.problems),
        )

    def _ip(self, ips: list[str]) -> str:
        """The address to use, in normal form.

        Raises:
            _UnusableError: There is none of the family.
        """
        for ip in ips[:1] if self._family is IpFamily.AUTO else ips:
            address = _reachable(ip)
            family = IpFamily.IPV6 if address is not None and ":" in address else IpFamily.IPV4
            if address is not None and self._family in (IpFamily.AUTO, family):
                return address
        expected = {IpFamily.AUTO: "an IPv4 or IPv6", IpFamily.IPV4: "an IPv4", IpFamily.IPV6: "an IPv6"}[self._family]
        found = ", ".join(map(quote, ips))
        raise _UnusableError(UnusableReason.NO_ADDRESS_OF_FAMILY, f"expected {expected} address, found {found}")


class _UnusableError(Exception):
    def __init__(self, reason: UnusableReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


# ── state ──


def _ips(status: PodStatus) -> list[str]:
    """All its addresses, that of the first family first."""
    return list(dict.fromkeys(ip for ip in (status.pod_ip, *(each.ip for each in status.pod_ips or ())) if ip))


def _reachable(text: str) -> str | None:
    """An address in normal form; None for those at which no pod can be: another host's metadata service, or every host.

    IPv4 written as IPv6 (`::ffff:10.0.0.1`) is IPv4, so that one place does not count as two.
    """
    normal = parse_ip(text)
    address = None if normal is None else ip_address(normal)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address is None or address.is_unspecified or address.is_multicast or address.is_link_local or address == _BROADCAST:
        return None
    return str(address)


def _address(ip: str, port: int) -> EndpointAddress:
    """What `endpoint_address` makes of an address in normal form, without reading it for each port again."""
    return EndpointAddress(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")


def _not_ready_reason(status: PodStatus) -> str | None:
    """Why it is not to be picked, in one sentence; None when it is Running and Ready."""
    if status.phase != "Running":
        return f"pod is {status.phase}, not Running" if status.phase else "pod has no phase yet"
    ready = next((condition for condition in status.conditions or () if condition.type == "Ready"), None)
    if ready is None:
        return "pod has no condition Ready yet"
    if ready.status == "True":
        return None
    told = ": ".join(" ".join(text.split()) for text in (ready.reason, ready.message) if text)
    return f"pod is not Ready: {shorten(told)}" if told else f"pod is not Ready: condition is {ready.status}"


# ── ports ──


def _ports_in_use(pod: Pod, definition: PoolDefinition) -> list[tuple[int, int]]:
    """(rank, port) of each endpoint.

    A port that no container declares may be open all the same (declaring is informational in Kubernetes). But where every
    container declares its ports, and none is a target port, nobody can serve.

    Raises:
        _UnusableError: There is none.
    """
    target_ports = definition.target_ports
    declared, complete = _declared_ports(pod.spec or PodSpec())
    if complete and not declared.intersection(target_ports):
        raise _UnusableError(
            UnusableReason.NO_TARGET_PORT,
            f"expected a container port that is a target port of the pool ({_list(target_ports)}), "
            f"found {_list(sorted(declared))}",
        )
    active = _active_ports(pod)
    ports = [(rank, port) for rank, port in enumerate(target_ports) if active is None or port in active[1]]
    if active is not None and not ports:
        key, found = active
        raise _UnusableError(
            UnusableReason.NO_TARGET_PORT,
            f"annotation {key}: expected a target port of the pool ({_list(target_ports)}), found {_list(sorted(found))}",
        )
    return ports


def _declared_ports(spec: PodSpec) -> tuple[set[int], bool]:
    """The TCP ports that containers declare, and whether all of them do, so that no other can be expected to be open.

    Sidecars (init containers that restart always) count for the first only: that one has no ports says nothing.
    """
    containers = spec.containers or []
    sidecars = [container for container in spec.init_containers or () if container.restart_policy == "Always"]
    declared = {port for container in (*containers, *sidecars) for port in _tcp_ports(container)}
    return declared, bool(declared) and all(any(_tcp_ports(container)) for container in containers)


def _tcp_ports(container: Container) -> Iterator[int]:
    return (port.container_port for port in container.ports or () if port.protocol in (None, "TCP"))


def _active_ports(pod: Pod) -> tuple[str, frozenset[int]] | None:
    """The annotation that names the active ports, and these; None when there is none.

    Raises:
        _UnusableError: It is no list of ports.
    """
    annotations = pod.metadata.annotations or {}
    for key in ACTIVE_PORTS_KEYS:
        text = annotations.get(key)
        if text is not None:
            ports = [parse_port(part.strip()) for part in text.split(",")]
            if None in ports:
                raise _UnusableError(
                    UnusableReason.BAD_ANNOTATION, f"annotation {key}: expected ports such as 8000,8001, found {quote(text)}"
                )
            return key, frozenset(port for port in ports if port is not None)
    return None


def _restarts(pod: Pod, port: int) -> int:
    """How often what serves `port` was restarted.

    That of the container that declares the port; of all containers when none does, or only a sidecar: such a one passes
    requests on to another container, and it is the restart of this that matters.
    """
    spec, status = pod.spec or PodSpec(), pod.status or PodStatus()
    serving = next((each.name for each in spec.containers or () if port in _tcp_ports(each)), None)
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return sum(each.restart_count for each in statuses if serving in (None, each.name))


def _list(ports: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ports))


# ── labels and annotations ──


class _Marks:
    """What a pod's labels and annotations ask for; what cannot be followed goes to `problems`."""

    def __init__(self, pod: Pod) -> None:
        self.problems: list[PodProblem] = []
        self._pod = pod.metadata.name
        self._labels = pod.metadata.labels or {}
        self._annotations = pod.metadata.annotations or {}

    def engine(self, known_engine: Callable[[str], str]) -> str | None:
        """The proper name of the engine; None to recognise it from the metrics page."""
        return self._first(ENGINE_KEYS, known_engine, None)

    def weight(self) -> float:
        return self._first(WEIGHT_KEYS, _read_weight, 1.0)

    def metrics(self) -> MetricsTarget:
        if not self._annotations:
            return _DEFAULT_METRICS
        return MetricsTarget(
            port=self._annotated(METRICS_PORT_KEY, _read_port, None),
            path=self._annotated(METRICS_PATH_KEY, _read_path, None),
            scheme=self._annotated(METRICS_SCHEME_KEY, _read_scheme, None),
        )

    def _first(self, keys: tuple[str, ...], read: Callable[[str], T], otherwise: T) -> T:
        for key in keys:
            if key in self._labels:
                return self._read(f"label {key}", self._labels[key], read, otherwise)
            if key in self._annotations:
                return self._annotated(key, read, otherwise)
        return otherwise

    def _annotated(self, key: str, read: Callable[[str], T], otherwise: T) -> T:
        text = self._annotations.get(key)
        return otherwise if text is None else self._read(f"annotation {key}", text, read, otherwise)

    def _read(self, where: str, text: str, read: Callable[[str], T], otherwise: T) -> T:
        try:
            return read(text)
        except (ConfigError, ValueError) as error:
            told = str(error)
            expected = told[max(0, told.find("expected ")) :]  # the path before it is said here
            self.problems.append(PodProblem(self._pod, f"pod {self._pod}: {where}: {expected}"))
            return otherwise


def _of_text(read: Callable[[YamlNode], T]) -> Callable[[str], T]:
    """`read` of the endpoints file, for a text that stands alone: what may be written there may be written here."""

    def read_text(text: str) -> T:
        try:
            return read(YamlScalar(text, plain=True, line=1))
        except FaultError as fault:
            raise ValueError(f"expected {fault.expected}, found {quote(text)}") from None

    return read_text


_read_weight, _read_port = _of_text(read_weight), _of_text(read_port)
_read_path, _read_scheme = _of_text(read_path), _of_text(read_scheme)
_DEFAULT_METRICS = MetricsTarget()
