"""Reading the configuration file, with every fault named by its path and line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epp.config.document import Document, PluginConfig, PluginRef, ProfileConfig
from epp.config.settings import Setting, declared
from epp.config.wording import show, step
from epp.config.yaml_tree import YamlList, YamlMap, YamlNode, YamlScalar, describe, read_yaml
from epp.errors import ConfigError

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"
_FIRST_STEP = re.compile(r"[.\[]")
DIGITS_MAX = 300
"""Longer numbers are refused: no setting needs them, and Python does not read those over 4300."""


def read_document(text: str, where: str) -> Document:
    """Read a configuration file.

    Args:
        where: Name of the file (or flag), for errors.

    Raises:
        ConfigError: All faults of the text, each as `where: path: expected …, found …`.
    """
    reading = try_document(text, where)
    if reading.problems:
        raise ConfigError(*reading.problems)
    return reading.document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What could be read of a configuration file.

    Attributes:
        document: Without what has a fault.
        problems: Every fault, as `read_document` raises them.
        faulty_sections: The top-level keys with a fault in them: what they say is not known whole, so that checking it
            further would report what only follows from those faults.
    """

    document: Document
    problems: Sequence[str]
    faulty_sections: frozenset[str]


def try_document(text: str, where: str) -> Reading:
    """Read a configuration file as far as it can be read.

    Raises:
        ConfigError: It is no YAML.
    """
    reader = _Reader(where)
    document = reader.document(read_yaml(text, where))
    return Reading(document=document, problems=reader.problems, faulty_sections=frozenset(reader.faulty_sections))


class _TooLongError(Exception):
    """A number has more than `DIGITS_MAX` digits."""


class _Reader:
    """Reads the tree and collects every fault on the way."""

    def __init__(self, where: str) -> None:
        self.problems: list[str] = []
        self.faulty_sections: set[str] = set()
        self._where = where
        self._by_section: dict[str, dict[str, tuple[str, str, Setting, Any]]] = {}
        for group, attribute, setting, default in declared():
            if setting.key is not None:
                section, _, key = setting.key.partition(".")
                self._by_section.setdefault(section, {})[key] = (group, attribute, setting, default)

    def document(self, root: YamlNode | None) -> Document:
        if root is None or not isinstance(root, YamlMap):
            self._wrong("", f"a map with apiVersion and kind: {KIND}", root)
            return Document(where=self._where)
        allowed = ("apiVersion", "kind", "plugins", "schedulingProfiles", *sorted(self._by_section))
        self._refuse_unknown(root, "", allowed)
        self._one_of(root, "apiVersion", API_VERSIONS)
        self._one_of(root, "kind", (KIND,))
        return Document(
            where=self._where,
            values=self._values(root),
            plugins=[p for p in self._each(root, "plugins", self._plugin) if p is not None],
            profiles=[p for p in self._each(root, "schedulingProfiles", self._profile) if p is not None],
        )

    def _values(self, root: YamlMap) -> dict[tuple[str, str], Any]:
        values: dict[tuple[str, str], Any] = {}
        for section, known in self._by_section.items():
            node = root.entries.get(section)
            if node is None:
                continue
            if not isinstance(node, YamlMap):
                self._wrong(section, "a map", node)
                continue
            self._refuse_unknown(node, section, tuple(sorted(known)))
            for key, value in node.entries.items():
                if key not in known:
                    continue
                group, attribute, setting, default = known[key]
                path = f"{section}.{key}"
                if default is None and isinstance(value, YamlScalar) and value.is_null:
                    continue
                try:
                    values[group, attribute] = setting.kind.read(self._plain(value, path))
                except ValueError as error:
                    self._tell(path, f"{error} (line {value.line})")
                except _TooLongError:
                    pass
        return values

    def _plugin(self, node: YamlMap, path: str) -> PluginConfig | None:
        self._refuse_unknown(node, path, ("name", "parameters", "type"))
        kind = self._text(node, path, "type")
        if kind is None:
            return None
        name = self._text(node, path, "name") if "name" in node.entries else kind
        parameters = node.entries.get("parameters")
        if parameters is not None and not isinstance(parameters, YamlMap):
            self._wrong(f"{path}.parameters", "a map", parameters)
            return None
        try:
            values = {} if parameters is None else self._plain(parameters, f"{path}.parameters")
        except _TooLongError:
            return None
        return PluginConfig(where=f"{self._where}: {path}", name=name or kind, type=kind, parameters=values)

    def _profile(self, node: YamlMap, path: str) -> ProfileConfig | None:
        self._refuse_unknown(node, path, ("name", "plugins"))
        name = self._text(node, path, "name")
        refs = [r for r in self._each(node, "plugins", self._ref, path) if r is not None]
        return None if name is None else ProfileConfig(where=f"{self._where}: {path}", name=name, plugins=refs)

    def _ref(self, node: YamlMap, path: str) -> PluginRef | None:
        self._refuse_unknown(node, path, ("pluginRef", "weight"))
        name = self._text(node, path, "pluginRef")
        weight = node.entries.get("weight")
        number = weight.number if isinstance(weight, YamlScalar) else None
        if weight is not None and (number is None or not 0 <= number < float("inf")):
            self._wrong(f"{path}.weight", "a number of at least 0", weight)
        return None if name is None else PluginRef(where=f"{self._where}: {path}", name=name, weight=number)

    def _each(self, parent: YamlMap, key: str, read: Any, path: str = "") -> list[Any]:
        node = parent.entries.get(key)
        if node is None:
            return []
        path = f"{path}.{key}" if path else key
        if not isinstance(node, YamlList):
            self._wrong(path, "a list", node)
            return []
        found = []
        for i, item in enumerate(node.items):
            if isinstance(item, YamlMap):
                found.append(read(item, f"{path}[{i}]"))
            else:
                self._wrong(f"{path}[{i}]", "a map", item)
        return found

    def _text(self, parent: YamlMap, path: str, key: str) -> str | None:
        node = parent.entries.get(key)
        if isinstance(node, YamlScalar) and node.text and not node.is_null:
            return node.text
        self._wrong(f"{path}.{key}", "a text", node)
        return None

    def _one_of(self, root: YamlMap, key: str, allowed: Sequence[str]) -> None:
        node = root.entries.get(key)
        if not isinstance(node, YamlScalar) or node.text not in allowed:
            self._wrong(key, " or ".join(allowed), node)

    def _refuse_unknown(self, node: YamlMap, path: str, allowed: Sequence[str]) -> None:
        for key, value in node.entries.items():
            if key not in allowed:
                place = (path + step(key)).removeprefix(".")
                self._tell(place, f"expected one of {', '.join(allowed)}, found {show(key)} (line {value.line})")

    def _wrong(self, path: str, expected: str, node: YamlNode | None) -> None:
        found = "nothing" if node is None else f"{describe(node)} (line {node.line})"
        self._tell(path, f"expected {expected}, found {found}")

    def _plain(self, node: YamlNode, path: str) -> Any:
        """The value in Python's own types; numbers without a point are int.

        Raises:
            _TooLongError: There is a number that is too long; it is reported.
        """
        match node:
            case YamlMap(entries=entries):
                return {key: self._plain(value, path + step(key)) for key, value in entries.items()}
            case YamlList(items=items):
                return [self._plain(item, f"{path}[{i}]") for i, item in enumerate(items)]
            case YamlScalar() as scalar:
                if scalar.is_null:
                    return None
                if scalar.boolean is not None:
                    return scalar.boolean
                number = scalar.number
                if number is None:
                    return scalar.text
                if not scalar.text.lstrip("+-").isdigit():
                    return number
                if len(scalar.text) > DIGITS_MAX:
                    self._wrong(path, f"a number of at most {DIGITS_MAX} digits", node)
                    raise _TooLongError
                return int(scalar.text)

    def _tell(self, path: str, fault: str) -> None:
        self.faulty_sections.add(_FIRST_STEP.split(path, maxsplit=1)[0])
        self.problems.append(f"{self._where}: {path}: {fault}" if path else f"{self._where}: {fault}")
