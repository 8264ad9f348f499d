"""YAML (and JSON, which is YAML too) as a tree that still knows the source text and line of each value.

The usual loaders guess types first: `name: 1e3`, `role: on`, `port: 010` and `version: 1.10` come out as something else
than was written, and of two equal keys the last wins silently. Here a scalar keeps its text, and whoever reads it knows
what it should be. Built from the parser's events, without recursion and without copying what an alias names, so that
neither deep nesting nor aliases of aliases cost more than the file is long.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from epp.config.wording import quote, shorten, step
from epp.errors import ConfigError

DEPTH_MAX = 32
"""Deepest nesting that is read."""
FAULTS_MAX = 1000
"""How many faults of one file are told."""
MERGED_KEYS_MAX = 100_000
"""How many keys all `<<` of one file may copy."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING_TAGS = ("tag:yaml.org,2002:str", "!")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """One text, number, boolean or null.

    Attributes:
        text: As it stands in the file, without quotes.
        plain: Whether it stands there without quotes; only then it can be a number, a boolean or null.
        line: Counted from 1.
    """

    text: str
    plain: bool
    line: int

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS

    @property
    def boolean(self) -> bool | None:
        """The boolean of YAML 1.2 (`yes` and `on` are texts); None when it is none."""
        if self.plain and self.text in _TRUE:
            return True
        return False if self.plain and self.text in _FALSE else None

    @property
    def number(self) -> float | None:
        """The decimal number; None when it is none."""
        return float(self.text) if self.plain and _NUMBER.fullmatch(self.text) else None


@dataclass(slots=True)
class YamlList:
    """A sequence."""

    line: int
    items: list["YamlNode"] = field(default_factory=list)


@dataclass(slots=True)
class YamlMap:
    """A mapping with texts as keys."""

    line: int
    entries: dict[str, "YamlNode"] = field(default_factory=dict)


YamlNode: TypeAlias = YamlScalar | YamlList | YamlMap


def describe(node: YamlNode) -> str:
    """What was found, short enough for one line."""
    if isinstance(node, YamlMap):
        return "a map"
    if isinstance(node, YamlList):
        return "a list"
    if node.is_null:
        return "nothing"
    return shorten(node.text) if node.number is not None or node.boolean is not None else quote(node.text)


def read_yaml(text: str, where: str) -> YamlNode | None:
    """The one document of `text`; None when there is none.

    Raises:
        ConfigError: It is no YAML, or has keys twice, several documents, tags, or deeper nesting than `DEPTH_MAX`; each
            fault as `where: path: expected …, found … (line …)`.
    """
    builder = _Builder(where)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f" (line {mark.line + 1})"
        raise ConfigError(f"{where}: expected YAML or JSON, found a fault: {error.problem or error.context}{line}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        fault = str(error).splitlines()[0]
        raise ConfigError(f"{where}: expected YAML or JSON, found a fault: {fault}") from None
    if builder.problems:
        raise ConfigError(*builder.problems)
    return builder.root


class Problems(list[str]):
    """The faults of one file; after `FAULTS_MAX` reading ends with those."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def tell(self, fault: str) -> None:
        """Note a fault, told as `where: fault`."""
        self.append(f"{self._where}: {fault}")
        if len(self) >= FAULTS_MAX:
            raise ConfigError(*self, f"{self._where}: expected fewer faults, found {FAULTS_MAX} and stopped there")


@dataclass(slots=True)
class _Open:
    """A list or map whose end has not come yet."""

    node: YamlList | YamlMap
    anchor: str | None
    key: str | None = None
    merges: list[YamlNode] = field(default_factory=list)
    awaits_value: bool = False
    drops_value: bool = False


class _Builder:
    """Makes the tree from the parser's events."""

    def __init__(self, where: str) -> None:
        self.root: YamlNode | None = None
        self.problems = Problems(where)
        self._where = where
        self._open: list[_Open] = []
        self._anchors: dict[str, YamlNode] = {}
        self._documents = 0
        self._merged_keys = 0

    def take(self, event: yaml.Event) -> None:
        line = 0 if event.start_mark is None else event.start_mark.line + 1
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise ConfigError(f"{self._where}: expected one document, found another (line {line})")
            case yaml.MappingStartEvent():
                self._begin(YamlMap(line), event)
            case yaml.SequenceStartEvent():
                self._begin(YamlList(line), event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.ScalarEvent():
                self._refuse_tag(event, line)
                scalar = YamlScalar(event.value, event.implicit[0], line)
                self._remember(event.anchor, scalar)
                self._place(scalar)
            case yaml.AliasEvent():
                self._place(self._aliased(event.anchor, line))
            case _:
                pass

    def _begin(self, node: YamlList | YamlMap, event: Any) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise ConfigError(f"{self._where}: expected at most {DEPTH_MAX} levels, found more (line {node.line})")
        self._refuse_tag(event, node.line)
        self._open.append(_Open(node, event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.node, YamlMap):
            for merged in done.merges:
                self._merge(done.node, merged)
        self._remember(done.anchor, done.node)
        self._place(done.node)

    def _place(self, node: YamlNode) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent.node, YamlList):
            parent.node.items.append(node)
        elif not parent.awaits_value:
            parent.key, parent.drops_value = self._key(parent.node, node)
            parent.awaits_value = True
        else:
            parent.awaits_value = False
            if parent.key is None:
                parent.merges.append(node)
            elif not parent.drops_value:
                parent.node.entries[parent.key] = node

    def _key(self, parent: YamlMap, node: YamlNode) -> tuple[str | None, bool]:
        """The key that `node` is (None for `<<`), and whether its value has no place."""
        if not isinstance(node, YamlScalar):
            self._report("expected a text as key", node)
            return "?", True
        if node.plain and node.text == "<<":
            return None, False
        if node.text in parent.entries:
            self._report("expected each key once", node)
            return node.text, True
        # Keeps the place in the order, and makes a second key of this name be seen.
        parent.entries[node.text] = node
        return node.text, False

    def _merge(self, target: YamlMap, source: YamlNode) -> None:
        sources = source.items if isinstance(source, YamlList) else [source]
        for node in sources:
            if not isinstance(node, YamlMap):
                self._report("<<: expected a map or a list of maps", node)
                continue
            self._merged_keys += len(node.entries)
            if self._merged_keys > MERGED_KEYS_MAX:
                raise ConfigError(f"{self._where}: expected at most {MERGED_KEYS_MAX} keys merged by <<, found more")
            for key, value in node.entries.items():
                target.entries.setdefault(key, value)

    def _remember(self, anchor: str | None, node: YamlNode) -> None:
        if anchor is not None:
            self._anchors[anchor] = node

    def _aliased(self, anchor: str | None, line: int) -> YamlNode:
        node = self._anchors.get(anchor or "")
        if node is None:
            # Also for a list or map that names itself: its anchor counts from its end on.
            raise ConfigError(f"{self._where}: expected an anchor &{anchor} before its alias, found none (line {line})")
        return node

    def _refuse_tag(self, event: Any, line: int) -> None:
        if event.tag is not None and event.tag not in _STRING_TAGS:
            self.problems.tell(f"expected no tag, found {event.tag} (line {line})")

    def _report(self, expected: str, node: YamlNode) -> None:
        path = "".join(self._path()).removeprefix(".")
        place = f"{path}: " if path else ""
        self.problems.tell(f"{place}{expected}, found {describe(node)} (line {node.line})")

    def _path(self) -> Iterator[str]:
        for parent in self._open:
            if isinstance(parent.node, YamlList):
                yield f"[{len(parent.node.items)}]"
            elif parent.awaits_value:
                yield step("<<" if parent.key is None else parent.key)
