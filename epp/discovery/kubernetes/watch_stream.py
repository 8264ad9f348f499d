"""From the bytes of a watch to its events; no I/O.

A watch is a stream of JSON objects, one a line: `{"type": "ADDED", "object": {…}}` (Kubernetes API concepts, "Efficient
detection of changes").
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import msgspec

from epp.config.wording import shorten
from epp.discovery.kubernetes.api_errors import ApiError, UnexpectedAnswerError, error_of

LINE_MAX_BYTES = 16 << 20
"""etcd takes objects of 1.5 MiB; a line that is far longer is no event."""


@dataclass(frozen=True, slots=True)
class Changed:
    """An object was added or modified, or matches the selector now."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted, or does not match the selector any more."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Everything up to `version` was sent."""

    version: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a type that this program does not know."""

    type: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The watch is over: the server says so, or what it sends is no event."""

    error: ApiError


Event: TypeAlias = Changed | Deleted | Bookmark | Unknown | Failed


class _Type(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Meta(msgspec.Struct, rename="camel"):
    """What is read of the metadata of any object, and of a list."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Identified(msgspec.Struct):
    """Any object, as far as its metadata go."""

    metadata: Meta


_LINE = msgspec.json.Decoder(_Line)
_IDENTIFIED = msgspec.json.Decoder(Identified)


def meta_of(raw: bytes) -> Meta | None:
    """The metadata of an object; None when it has none that can be read."""
    try:
        return _IDENTIFIED.decode(raw).metadata
    except (ValueError, RecursionError):
        return None


class WatchStream:
    """Cuts the body of a watch into events.

    After a `Failed` nothing more is to be fed.
    """

    def __init__(self, *, line_max_bytes: int = LINE_MAX_BYTES) -> None:
        self._line_max_bytes = line_max_bytes
        self._rest = bytearray()

    @property
    def in_a_line(self) -> bool:
        """Whether the bytes so far end within a line: a stream that ends so was cut."""
        return bool(self._rest.strip())

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        searched = len(self._rest)
        self._rest += chunk
        end = self._rest.rfind(b"\n", searched)
        if end < 0:
            return [self._too_long()] if len(self._rest) > self._line_max_bytes else []
        lines = bytes(self._rest[:end]).split(b"\n")
        del self._rest[: end + 1]
        events: list[Event] = []
        for line in lines:
            if line.strip():
                events.append(_event(line))
                if isinstance(events[-1], Failed):
                    break
        return events

    def _too_long(self) -> Failed:
        return Failed(UnexpectedAnswerError(200, "", f"a line of more than {self._line_max_bytes} bytes in a watch"))


def _event(line: bytes) -> Event:
    try:
        decoded = _LINE.decode(line)
    except (ValueError, RecursionError):
        return _garbled(line)
    raw = bytes(decoded.object)
    match decoded.type:
        case _Type.ADDED.value | _Type.MODIFIED.value:
            return Changed(raw)
        case _Type.DELETED.value:
            return Deleted(raw)
        case _Type.BOOKMARK.value:
            meta = meta_of(raw)
            return _garbled(line) if meta is None or not meta.resource_version else Bookmark(meta.resource_version)
        case _Type.ERROR.value:
            return Failed(error_of(None, raw))
        case _:
            return Unknown(shorten(decoded.type))


def _garbled(line: bytes) -> Failed:
    shown = shorten(line[:200].decode(errors="replace"))
    return Failed(UnexpectedAnswerError(200, "", f"expected an event of a watch, found {shown!r}"))
