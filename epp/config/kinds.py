"""How values are written: durations, sizes, ports, lists. Each kind reads text (flags, environment) and YAML values."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from epp.config.wording import show, type_of

T = TypeVar("T")

COUNT_MAX = 2**31 - 1
SIZE_MAX = 1 << 40
DNS_LABEL_MAX_CHARS = 63
DNS_NAME_MAX_CHARS = 253
PORTS_MAX = 8
"""Target ports of one pool (InferencePool v1, `spec.targetPorts`)."""

_DURATION_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SIZE = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB|Ki|Mi|Gi|kB|KB|MB|GB|k|M|G)$")
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "Ki": 1 << 10, "MiB": 1 << 20, "Mi": 1 << 20, "GiB": 1 << 30, "Gi": 1 << 30,
               "kB": 1000, "KB": 1000, "k": 1000, "MB": 10**6, "M": 10**6, "GB": 10**9, "G": 10**9}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One way of writing values.

    Attributes:
        expected: What a value looks like, completing "expected …".
        parse: Reads a value (text, or what YAML made of it); raises ValueError or TypeError when it is none.
        name: One word for `--help`.
        found: How a value that is none is shown in the error; of secrets it shows no more than where and what kind.
    """

    name: str
    expected: str
    parse: Callable[[Any], T]
    found: Callable[[Any], str] = show

    def read(self, value: Any) -> T:
        """The value, or a ValueError whose text is `expected …, found …`."""
        try:
            return self.parse(value)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"expected {self.expected}, found {self.found(value)}") from None


def parse_duration_s(value: Any) -> float:
    """Seconds of a Go-style duration (`50ms`, `2s`, `1m30s`); a bare 0 is zero."""
    if isinstance(value, bool):
        raise TypeError(value)
    text = str(value).strip()
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(a + b for a, b in parts) != text:
        raise ValueError(value)
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)


def _at_least(parse: Callable[[Any], float], minimum: float) -> Callable[[Any], float]:
    def checked(value: Any) -> float:
        result = parse(value)
        if not minimum <= result < float("inf"):
            raise ValueError(value)
        return result

    return checked


def duration(*, minimum_s: float = 0.0) -> Kind[float]:
    """Durations of at least `minimum_s`; the value is in seconds."""
    tail = "" if minimum_s == 0 else f" of at least {minimum_s * 1000:g}ms"
    return Kind("duration", f"a duration such as 50ms, 2s or 1m{tail}", _at_least(parse_duration_s, minimum_s))


def number(*, minimum: float) -> Kind[float]:
    """Numbers of at least `minimum`."""

    def parse(value: Any) -> float:
        if isinstance(value, bool):
            raise TypeError(value)
        return float(value)

    return Kind("number", f"a number of at least {minimum:g}", _at_least(parse, minimum))


def choice(*allowed: str) -> Kind[str]:
    """One of a few words."""

    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(value)
        return str(value)

    return Kind("|".join(allowed), "one of " + ", ".join(allowed), parse)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in {"true", "false", "1", "0", "t", "f"}:
        raise ValueError(value)
    return text[0] in "t1"


def _port(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise TypeError(value)
    port = int(value)
    if not 0 <= port <= 65535:
        raise ValueError(value)
    return port


def _count(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise TypeError(value)
    count = int(value)
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(value)
    return count


def _size(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    match = _SIZE.match(str(value).strip())
    if match is None:
        raise ValueError(value)
    size = int(match[1]) * _SIZE_UNITS[match[2]]
    if not 1 <= size <= SIZE_MAX:
        raise ValueError(value)
    return size


def _ports(value: Any) -> tuple[int, ...]:
    if value in ("", "[]"):  # the default of the reference pickers, written out
        return ()
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(parts, (list, tuple)):
        raise TypeError(value)
    ports = tuple(_port(part) for part in parts)
    if not 1 <= len(ports) <= PORTS_MAX or len(set(ports)) < len(ports) or 0 in ports:
        raise ValueError(value)
    return ports


def _text_or_nothing(value: Any) -> str | None:
    if not isinstance(value, str):
        raise TypeError(value)
    return value or None


def _dns_label(value: Any) -> str | None:
    text = _text_or_nothing(value)
    if text is not None and (len(text) > DNS_LABEL_MAX_CHARS or not _DNS_LABEL.fullmatch(text)):
        raise ValueError(value)
    return text


def _dns_name(value: Any) -> str | None:
    text = _text_or_nothing(value)
    if text is not None and (len(text) > DNS_NAME_MAX_CHARS or not all(map(_DNS_LABEL.fullmatch, text.split(".")))):
        raise ValueError(value)
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _path(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(value)
    return text


def _text_list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TypeError(value)
    return tuple(value)


def _text_map(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise TypeError("a map")
    return tuple(value.items())


def _found_instead_of_text_map(value: Any) -> str:
    """Names keys and types alone: the values of such a map are API keys as a rule."""
    if not isinstance(value, Mapping):
        return type_of(value)
    return ", ".join(f"{type_of(v)} at {show(k)}" for k, v in value.items() if not (isinstance(k, str) and isinstance(v, str)))


TEXT: Kind[str] = Kind("text", "a text", _text)
TEXT_OR_NOTHING: Kind[str | None] = Kind("text", "a text, or nothing", _text_or_nothing)
"""An empty text is as none at all: so the reference pickers write their defaults."""
DNS_LABEL: Kind[str | None] = Kind("name", "lower-case letters, digits and - (at most 63), or nothing", _dns_label)
"""Names of namespaces (RFC 1123 label)."""
DNS_NAME: Kind[str | None] = Kind("name", "lower-case letters, digits, - and . (at most 253), or nothing", _dns_name)
"""Names of most objects in Kubernetes (RFC 1123 subdomain)."""
BOOLEAN: Kind[bool] = Kind("true|false", "true or false", _boolean)
PORT: Kind[int] = Kind("port", "a port from 0 to 65535", _port)
PORTS: Kind[tuple[int, ...]] = Kind("port,…", f"1 to {PORTS_MAX} different ports from 1 to 65535, such as 8000,8001", _ports)
COUNT: Kind[int] = Kind("count", f"a whole number from 1 to {COUNT_MAX}", _count)
SIZE: Kind[int] = Kind("size", "a number of bytes such as 1048576 or 64MiB, at most 1024GiB", _size)
DURATION: Kind[float] = duration()
TEXT_LIST: Kind[tuple[str, ...]] = Kind("a,b,…", "a list of texts", _text_list)
TEXT_MAP: Kind[tuple[tuple[str, str], ...]] = Kind("map", "a map of texts", _text_map, _found_instead_of_text_map)
PATH: Kind[str] = Kind("path", "a path such as /metrics", _path)
