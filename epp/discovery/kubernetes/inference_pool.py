"""Which pods make up the pool, and which of their ports serve: from an InferencePool of either version, or from flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epp.config.kinds import PORTS_MAX
from epp.discovery.kubernetes.label_selector import LabelSelector
from epp.discovery.kubernetes.objects import InferencePool, InferencePoolV1Alpha2, ObjectMeta
from epp.errors import ConfigError

_SELECTOR_FLAG = "--endpoint-selector"
_PORTS_FLAG = "--endpoint-target-ports"


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    """What makes a pod a member of the pool.

    Attributes:
        selector: Of pods in the pool's namespace; never empty, since that would be all of them.
        target_ports: 1 to 8 different ports from 1 to 65535; each is an endpoint of its own, and its place is its rank.
        app_protocol: What the ports speak, `http` or `kubernetes.io/h2c`; None when it is not said.
    """

    selector: LabelSelector
    target_ports: tuple[int, ...]
    app_protocol: str | None = None

    @classmethod
    def from_v1(cls, pool: InferencePool) -> "PoolDefinition":
        """The definition in an InferencePool of `inference.networking.k8s.io/v1`.

        Raises:
            ConfigError: It has no usable selector or ports; all faults.
        """
        spec, where = pool.spec, _where(pool.metadata)
        labels = spec.selector.match_labels if spec is not None and spec.selector is not None else None
        ports = [port.number for port in spec.target_ports or ()] if spec is not None else []
        return _checked(
            _selector_of(labels, f"{where}: spec.selector.matchLabels"),
            ports,
            f"{where}: spec.targetPorts",
            spec.app_protocol if spec is not None else None,
        )

    @classmethod
    def from_v1alpha2(cls, pool: InferencePoolV1Alpha2) -> "PoolDefinition":
        """The definition in an InferencePool of `inference.networking.x-k8s.io/v1alpha2`, which has one port.

        Raises:
            ConfigError: It has no usable selector or port; all faults.
        """
        spec, where = pool.spec, _where(pool.metadata)
        port = spec.target_port_number if spec is not None else None
        return _checked(
            _selector_of(spec.selector if spec is not None else None, f"{where}: spec.selector"),
            [] if port is None else [port],
            f"{where}: spec.targetPortNumber",
            None,
        )

    @classmethod
    def from_flags(cls, selector: str, target_ports: Sequence[int]) -> "PoolDefinition":
        """The definition in `--endpoint-selector`, which takes every kind of label selector, and `--endpoint-target-ports`.

        Raises:
            ConfigError: One of them is wrong; all faults.
        """
        return _checked(_selector_of_flag(selector), target_ports, _PORTS_FLAG, None)


_Selector = LabelSelector | ConfigError


def _where(metadata: ObjectMeta) -> str:
    return f"InferencePool {metadata.namespace}/{metadata.name}" if metadata.namespace else f"InferencePool {metadata.name}"


def _selector_of(labels: Mapping[str, str] | None, where: str) -> _Selector:
    if not labels:
        return ConfigError(f"{where}: expected at least one label (an empty selector would take every pod), found none")
    try:
        return LabelSelector.of_labels(labels, where)
    except ConfigError as error:
        return error


def _selector_of_flag(text: str) -> _Selector:
    try:
        selector = LabelSelector.parse(text, _SELECTOR_FLAG)
    except ConfigError as error:
        return error
    if not selector.requirements:
        return ConfigError(f"{_SELECTOR_FLAG}: expected at least one condition such as app=vllm, found none")
    return selector


def _checked(selector: _Selector, ports: Sequence[int], where: str, app_protocol: str | None) -> PoolDefinition:
    problems = list(selector.problems) if isinstance(selector, ConfigError) else []
    if not 1 <= len(ports) <= PORTS_MAX or len(set(ports)) < len(ports) or not all(1 <= port <= 65535 for port in ports):
        found = ", ".join(map(str, ports[: PORTS_MAX + 1])) + (", …" if len(ports) > PORTS_MAX + 1 else "")
        problems.append(f"{where}: expected 1 to {PORTS_MAX} different ports from 1 to 65535, found {found or 'none'}")
    if problems or isinstance(selector, ConfigError):
        raise ConfigError(*problems)
    return PoolDefinition(selector, tuple(ports), app_protocol)
