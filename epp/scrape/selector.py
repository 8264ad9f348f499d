"""Selectors as users write them: PromQL instant selectors such as `my_queue{state="waiting",tenant!~"test-.*"}`.

All four operators are honoured; a label that a series does not have counts as the empty text, and patterns must match the
whole value (https://prometheus.io/docs/prometheus/latest/querying/basics/#instant-vector-selectors). Values without quotes
are accepted, since files written for other pickers have them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from epp.errors import ConfigError

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*
        (?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|`(?P<raw>[^`]*)`|(?P<bare>[^\s,{}"'`=!~]+))
        \s*(?P<end>,|\})""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMatcher:
    """One condition on one label.

    Attributes:
        operator: `=`, `!=`, `=~` or `!~`.
        value: The text, or the pattern, to compare with.
    """

    label: str
    operator: str
    value: str
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern; raises re.error when it is none."""
        object.__setattr__(self, "_pattern", re.compile(self.value) if self.operator in {"=~", "!~"} else None)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels fulfils the condition."""
        found = labels.get(self.label, "")
        same = found == self.value if self._pattern is None else self._pattern.fullmatch(found) is not None
        return same is not self.operator.startswith("!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Selects series: all of one name that fulfil every condition."""

    name: str
    matchers: tuple[LabelMatcher, ...] = ()

    @property
    def fixed_labels(self) -> frozenset[str]:
        """Labels that have one value in all selected series."""
        return frozenset(matcher.label for matcher in self.matchers if matcher.operator == "=")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series of this name with these labels is selected."""
        return all(matcher.matches(labels) for matcher in self.matchers)


def parse_selector(text: str, where: str) -> Selector:
    """Read a selector.

    Args:
        where: The key path of the text, for the error.

    Raises:
        ConfigError: It is none; the text says which part is wrong.
    """
    stripped = text.strip()
    name = _NAME.match(stripped)
    if name is None:
        raise _fault(text, where, "it must begin with the name of a metric")
    rest = stripped[name.end() :].lstrip()
    return Selector(name=name[0], matchers=_parse_matchers(rest, text, where) if rest else ())


def _parse_matchers(rest: str, text: str, where: str) -> tuple[LabelMatcher, ...]:
    if not rest.startswith("{"):
        raise _fault(text, where, f"after the name only {{…}} may follow, not {rest!r}")
    matchers: list[LabelMatcher] = []
    position, end = 1, ","
    while end == ",":
        if rest[position:].strip() == "}":  # no condition, or a comma behind the last one
            return tuple(matchers)
        match = _MATCHER.match(rest, position)
        if match is None:
            raise _fault(text, where, f'expected label="value" at {rest[position:]!r}')
        matchers.append(_matcher(match, text, where))
        position, end = match.end(), match["end"]
    if rest[position:]:
        raise _fault(text, where, f"nothing may follow the closing brace, not {rest[position:]!r}")
    return tuple(matchers)


def _matcher(match: re.Match[str], text: str, where: str) -> LabelMatcher:
    if match["label"] == "__name__":
        raise _fault(text, where, "the name stands before the brace, not in __name__")
    quoted = match["double"] if match["double"] is not None else match["single"]
    value = match["raw"] or match["bare"] or "" if quoted is None else _unescape(quoted)
    try:
        return LabelMatcher(label=match["label"], operator=match["operator"], value=value)
    except re.error as error:
        raise _fault(text, where, f"{value!r} is no regular expression: {error}") from None


def _unescape(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted, flags=re.DOTALL)


def _fault(text: str, where: str, detail: str) -> ConfigError:
    return ConfigError(f'{where}: expected a selector such as name{{label="value"}}, found {text!r}: {detail}')
