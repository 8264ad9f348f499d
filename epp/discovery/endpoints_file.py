"""The endpoints file: what may stand in it, and reading it. No input or output here.

It takes our own form and that of the reference picker's `file-discovery` (llm-d router,
pkg/epp/framework/plugins/datalayer/discovery/file): `name`, `namespace`, `address`, `port` as text, `metricsHost`
(`host:port`) and `labels`, under the one top-level key `endpoints`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from epp.config.wording import quote, step
from epp.config.yaml_tree import Problems, YamlList, YamlMap, YamlNode, YamlScalar, describe, read_yaml
from epp.discovery.endpoint_values import (
    FaultError,
    given,
    read_address,
    read_boolean,
    read_name,
    read_path,
    read_port,
    read_scheme,
    read_weight,
    text_of,
)
from epp.discovery.host_port import parse_hostname, parse_ip, split_host_port
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointSpec, MetricsTarget, endpoint_address

TOP_LEVEL_KEYS = ("endpoints",)
ENDPOINT_KEYS = ("name", "address", "port", "engine", "metrics", "labels", "weight", "draining", "namespace", "metricsHost")
METRICS_KEYS = ("port", "path", "scheme")
DEFAULT_NAMESPACE = "default"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEndpoint:
    """One entry of the endpoints file.

    Attributes:
        name: Unique in the file; `namespace/name` where two namespaces use one name.
        namespace: As in the reference picker's file; two entries may have one name in different namespaces.
        address: IPv4 or IPv6 address without brackets, or a hostname, in normal form.
        port: From 1 to 65535.
        engine: Name of the engine; None to recognise it from the metrics page.
        weight: Relative capacity, > 0.
    """

    name: str
    namespace: str = DEFAULT_NAMESPACE
    address: str
    port: int
    engine: str | None = None
    metrics: MetricsTarget = field(default_factory=MetricsTarget)
    labels: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0
    draining: bool = False

    @property
    def is_hostname(self) -> bool:
        """Whether `address` has to be resolved."""
        return parse_ip(self.address) is None

    def spec(self, ip: str, name: str) -> EndpointSpec:
        """This entry at one of its addresses."""
        return EndpointSpec(
            address=endpoint_address(ip, self.port),
            name=name,
            engine=self.engine,
            metrics=self.metrics,
            labels=self.labels,
            weight=self.weight,
            draining=self.draining,
        )


def read_endpoints_file(text: str, where: str, known_engine: Callable[[str], str]) -> tuple[FileEndpoint, ...]:
    """The entries of an endpoints file, in its order. An empty list is an empty pool.

    An empty file is a fault: an editor that truncates and then writes must not empty the pool for a moment.

    Args:
        text: The content, YAML or JSON.
        where: Name of the file, for errors.
        known_engine: Gives the proper name of an engine; raises ValueError or ConfigError with `expected …, found …`
            when there is no such engine.

    Raises:
        ConfigError: All faults of the file (the first `FAULTS_MAX`), each as `where: path: expected …, found … (line …)`.
    """
    root = read_yaml(text, where)
    reader = _Reader(where, known_engine)
    endpoints = reader.file(YamlScalar("", plain=True, line=1) if root is None else root)
    if reader.problems:
        raise ConfigError(*reader.problems)
    return _with_unique_names(endpoints)


def _with_unique_names(endpoints: list[FileEndpoint]) -> tuple[FileEndpoint, ...]:
    uses: dict[str, int] = {}
    for endpoint in endpoints:
        uses[endpoint.name] = uses.get(endpoint.name, 0) + 1
    return tuple(e if uses[e.name] == 1 else replace(e, name=f"{e.namespace}/{e.name}") for e in endpoints)


class _Reader:
    """Reads the tree and collects every fault on the way."""

    def __init__(self, where: str, known_engine: Callable[[str], str]) -> None:
        self.problems = Problems(where)
        self._known_engine = known_engine

    def file(self, root: YamlNode) -> list[FileEndpoint]:
        if not isinstance(root, YamlMap):
            self._wrong("", f"a map with the key {TOP_LEVEL_KEYS[0]}", root)
            return []
        self._refuse_unknown_keys(root, "", TOP_LEVEL_KEYS)
        listed = given(root, "endpoints")
        if listed is None:
            return []
        if not isinstance(listed, YamlList):
            self._wrong("endpoints", "a list", listed)
            return []
        endpoints: list[FileEndpoint] = []
        seen_names: dict[tuple[str, str], int] = {}
        seen_addresses: dict[tuple[str, int], int] = {}
        for index, node in enumerate(listed.items):
            endpoint = self._endpoint(node, f"endpoints[{index}]")
            if endpoint is None:
                continue
            named, served = (endpoint.namespace, endpoint.name), (endpoint.address, endpoint.port)
            self._refuse_twice("name", endpoint.name, seen_names.setdefault(named, index), index, node)
            address_text = f"{endpoint.address} port {endpoint.port}"
            self._refuse_twice("address", address_text, seen_addresses.setdefault(served, index), index, node)
            endpoints.append(endpoint)
        return endpoints

    def _endpoint(self, node: YamlNode, path: str) -> FileEndpoint | None:
        if not isinstance(node, YamlMap):
            self._wrong(path, f"a map with {', '.join(ENDPOINT_KEYS)}", node)
            return None
        faults_before = len(self.problems)
        self._refuse_unknown_keys(node, path, ENDPOINT_KEYS)
        metrics_node, labels_node = given(node, "metrics"), given(node, "labels")
        address = self._required(node, path, "address", read_address, "")
        endpoint = FileEndpoint(
            name=self._required(node, path, "name", read_name, ""),
            namespace=self._optional(node, path, "namespace", read_name, DEFAULT_NAMESPACE),
            address=address,
            port=self._required(node, path, "port", read_port, 0),
            engine=self._optional(node, path, "engine", self._read_engine, None),
            metrics=self._metrics(metrics_node, f"{path}.metrics", self._metrics_host_port(node, path, address)),
            labels={} if labels_node is None else self._labels(labels_node, f"{path}.labels"),
            weight=self._optional(node, path, "weight", read_weight, 1.0),
            draining=self._optional(node, path, "draining", read_boolean, False),
        )
        return endpoint if len(self.problems) == faults_before else None

    def _metrics(self, node: YamlNode | None, path: str, host_port: int | None) -> MetricsTarget:
        """The target that `metrics` describes, or that with the port of the reference picker's `metricsHost`."""
        if node is None:
            return MetricsTarget(port=host_port)
        if host_port is not None:
            self._wrong(path, "either metrics or metricsHost", node, found="both")
        if not isinstance(node, YamlMap):
            self._wrong(path, f"a map with {', '.join(METRICS_KEYS)}", node)
            return MetricsTarget()
        self._refuse_unknown_keys(node, path, METRICS_KEYS)
        return MetricsTarget(
            port=self._optional(node, path, "port", read_port, None),
            path=self._optional(node, path, "path", read_path, None),
            scheme=self._optional(node, path, "scheme", read_scheme, None),
        )

    def _metrics_host_port(self, node: YamlMap, path: str, address: str) -> int | None:
        """The port of `metricsHost`, which must be on the endpoint's own address: metrics are read where it serves."""

        def read(value: YamlNode) -> int:
            host, port = split_host_port(text_of(value) or "") or ("", 0)
            if (parse_ip(host) or parse_hostname(host)) != address:
                raise FaultError(f"{address}:port, the endpoint's own address")
            return port

        return self._optional(node, path, "metricsHost", read, None) if address else None

    def _labels(self, node: YamlNode, path: str) -> dict[str, str]:
        """Labels as they are written: `tier: 1.10` is the text `1.10`."""
        if not isinstance(node, YamlMap):
            self._wrong(path, "a map of texts", node)
            return {}
        labels: dict[str, str] = {}
        for key, value in node.entries.items():
            text = text_of(value)
            if text is None:
                self._wrong(path + step(key), "a text", value)
            else:
                labels[key] = text
        return labels

    def _read_engine(self, node: YamlNode) -> str:
        text = text_of(node)
        if text is None:
            raise FaultError("the name of an engine")
        try:
            return self._known_engine(text)
        except (ConfigError, ValueError) as error:
            _, expected, rest = str(error).partition("expected ")  # the path before it is this reader's to say
            raise FaultError(expected + rest, complete=True) from None

    def _required(self, parent: YamlMap, path: str, key: str, read: Callable[[YamlNode], T], otherwise: T) -> T:
        node = parent.entries.get(key)
        return self._value(
            f"{path}.{key}", YamlScalar("", plain=True, line=parent.line) if node is None else node, read, otherwise
        )

    def _optional(self, parent: YamlMap, path: str, key: str, read: Callable[[YamlNode], T], otherwise: T) -> T:
        node = given(parent, key)
        return otherwise if node is None else self._value(f"{path}.{key}", node, read, otherwise)

    def _value(self, path: str, node: YamlNode, read: Callable[[YamlNode], T], otherwise: T) -> T:
        """What `read` makes of `node`; after a fault, which is reported, `otherwise`."""
        try:
            return read(node)
        except FaultError as fault:
            if fault.complete:
                self.problems.tell(f"{path}: {fault.expected} (line {node.line})")
            else:
                self._wrong(path, fault.expected, node)
            return otherwise

    def _refuse_unknown_keys(self, node: YamlMap, path: str, allowed: tuple[str, ...]) -> None:
        for key, value in node.entries.items():
            if key not in allowed:
                place = (path + step(key)).removeprefix(".")
                self._wrong(place, f"one of the keys {', '.join(allowed)}", value, found=quote(key))

    def _refuse_twice(self, key: str, value: str, first: int, index: int, node: YamlNode) -> None:
        if first != index:
            self._wrong(f"endpoints[{index}].{key}", "one that is used once", node, found=f"{value}, as in endpoints[{first}]")

    def _wrong(self, path: str, expected: str, node: YamlNode, *, found: str | None = None) -> None:
        place = f"{path}: " if path else ""
        self.problems.tell(f"{place}expected {expected}, found {found or describe(node)} (line {node.line})")
