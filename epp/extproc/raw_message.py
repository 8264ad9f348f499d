"""Reading protobuf without building messages, for the few that come with every request.

A message is a row of fields: a tag (number and wire type) as varint, then a varint, or a length and so many bytes
(protobuf, "Encoding"). Whoever reads it here falls back to the generated classes when a message is of another shape.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping


class UnexpectedShapeError(Exception):
    """The message has something that is not read here."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next thing begins; IndexError when the data ends in it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise UnexpectedShapeError


def varint(value: int) -> bytes:
    """`value` (≥ 0) as varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class RawHeaders(Mapping[str, str]):
    """The headers of a serialised `HeaderMap` that have a value, looked up in its bytes: most are never asked for.

    A field `headers` holds a `HeaderValue` of `key` (field 1) and `raw_value` (field 3). A name is found by the bytes of
    its key field, which begin with a line feed, a character that no header name or value can have, so that nothing else
    looks like it.

    Args:
        data: Bytes that hold the map.
        start: Where it begins in them.
        stop: Where it ends.
    """

    __slots__ = ("_data", "_start", "_stop", "_whole")

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self._data = data
        self._start = start
        self._stop = stop
        self._whole: dict[str, str] | None = None

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        key = _KEYS.get(name)
        if key is None:
            return self._all().get(name, default)
        at = self._data.find(key, self._start, self._stop)
        if at < 0:
            return default
        data = self._data
        at += len(key)
        try:
            length = data[at]
            at += 1
            if length >= 0x80:
                length, at = read_varint(data, at - 1)
        except (IndexError, UnexpectedShapeError):  # no map that Envoy would write
            return default
        return str(data[at : at + length], "utf-8", "surrogateescape")

    def mentions(self, text: bytes) -> bool:
        """Whether `text` stands anywhere in the map, in a name or in a value."""
        return self._data.find(text, self._start, self._stop) >= 0

    def mention(self, texts: Iterable[bytes]) -> bool:
        """Whether one of `texts` stands anywhere in the map, in a name or in a value."""
        return any(self._data.find(text, self._start, self._stop) >= 0 for text in texts)

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, str]:
        if self._whole is None:
            pairs: list[tuple[str, str]] = []
            with contextlib.suppress(IndexError, UnexpectedShapeError):  # no map that Envoy would write
                pairs.extend(_pairs(self._data, self._start, self._stop))
            self._whole = {name: value for name, value in reversed(pairs) if value}
        return self._whole


def _pairs(data: bytes, at: int, stop: int) -> Iterator[tuple[str, str]]:
    while at < stop:
        _, at = read_varint(data, at)
        length, at = read_varint(data, at)
        yield _pair(data, at, at + length)
        at += length


def _pair(data: bytes, at: int, stop: int) -> tuple[str, str]:
    texts: dict[int, str] = {}
    while at < stop:
        tag, at = read_varint(data, at)
        length, at = read_varint(data, at)
        texts[tag >> 3] = str(data[at : at + length], "utf-8", "surrogateescape")
        at += length
    return texts.get(1, ""), texts.get(3, "") or texts.get(2, "")


def _key_field(name: str) -> bytes:
    """`key` and the tag of `raw_value` behind it."""
    return b"\x0a" + varint(len(name)) + name.encode() + b"\x1a"


KNOWN_NAMES = (
    ":method",
    ":path",
    ":status",
    "content-encoding",
    "content-length",
    "content-type",
    "upgrade",
    "x-data-parallel-host-port",
    "x-encoder-hosts-ports",
    "x-gateway-destination-endpoint-served",
    "x-gateway-inference-objective",
    "x-llm-d-inference-objective",
    "x-prefiller-host-port",
    "x-request-id",
)
"""Headers that every session asks for."""
_KEYS: Mapping[str, bytes] = {name: _key_field(name) for name in KNOWN_NAMES}
