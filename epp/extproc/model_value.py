"""Where a JSON body names its model, to the byte, so that the name can be changed and nothing else.

The member that counts is the last `model` of the outermost object, as in model servers; its key may be escaped. There is no
JSON parser here: both readers that decide what a body means tell in their own way where the value is.
"""

import codecs
import json
import re
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from epp.extproc.request_body import MAX_LENIENT_BODY_BYTES, printable_name

_ABSENT = msgspec.Raw()
_QUOTE = ord('"')


class _Model(msgspec.Struct, gc=False):
    model: msgspec.Raw = _ABSENT


_MODEL = msgspec.json.Decoder(_Model)
_ANY = json.JSONDecoder()
_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_BYTE_ORDER_MARKS = (  # those of UTF-32 first: they begin like those of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class ModelValue:
    """The JSON text of the model in a body.

    Attributes:
        start: Offset of its first byte.
        stop: Offset behind its last byte.
        codec: How the body encodes characters.
    """

    start: int
    stop: int
    codec: str = "utf-8"

    def replaced(self, body: bytes, model: str) -> bytes:
        """`body` with another model and every other byte as it was."""
        name = json.dumps(model).encode(self.codec)  # in ASCII, which every codec can say
        view = memoryview(body)  # a slice of bytes would be a copy more
        return b"".join((view[: self.start], name, view[self.stop :]))


def model_value(body: bytes) -> ModelValue | None:
    """Where the model stands in a whole body; None when it is no JSON object whose model is a text. Takes linear time."""
    try:
        return _strict(body)
    except (msgspec.DecodeError, RecursionError):
        return _lenient(body)


def model_in_part(body: bytes) -> tuple[str, ModelValue] | None:
    """The model that the beginning of a JSON body names, and where; None when none was found.

    Looks at most at `MAX_LENIENT_BODY_BYTES`, in UTF-8. Another `model` may follow in the part that is not there.
    """
    start = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
    text = body[start:MAX_LENIENT_BODY_BYTES].decode("utf-8", "surrogateescape")
    found, _ = _last_model(text)
    if found is None:
        return None
    name = printable_name(json.loads(text[found[0] : found[1]]))
    if name is None:
        return None
    first, last = (start + len(text[:at].encode("utf-8", "surrogateescape")) for at in found)
    return name, ModelValue(first, last)


# ── as msgspec reads ──


def _strict(body: bytes) -> ModelValue | None:
    copy = bytearray(body)
    skipped = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
    value = _MODEL.decode(memoryview(copy)[skipped:]).model
    if value is _ABSENT:
        return None
    view = memoryview(value)
    if view[0] != _QUOTE:
        return None
    text = bytes(view)
    start = _place(copy, view)
    stop = start + len(text)
    assert body[start:stop] == text, "raw JSON is a view of what was decoded"
    return ModelValue(start, stop)


def _place(copy: bytearray, view: memoryview) -> int:
    """At which offset of `copy` its view `view` begins; what `copy` holds is lost.

    Halves the range in question by filling its first half with a byte that the view does not begin with and looking
    whether it does now. So every byte is written at most once, whatever the body says and however often.
    """
    low, high = 0, len(copy)
    mark = 0  # never gets as far as the quote that the view begins with: that would take 2^34 bytes
    while high - low > 1:
        middle = (low + high) // 2
        copy[low:middle] = bytes((mark,)) * (middle - low)
        if view[0] == mark:
            high = middle
        else:
            low = middle
        mark += 1
    return low


# ── as Python's own reader does ──


def _lenient(body: bytes) -> ModelValue | None:
    if len(body) > MAX_LENIENT_BODY_BYTES:
        return None
    start, codec = next(
        ((len(mark), codec) for mark, codec in _BYTE_ORDER_MARKS if body.startswith(mark)), (0, json.detect_encoding(body))
    )
    try:
        text = body[start:].decode(codec, "surrogatepass")
    except ValueError:
        return None
    found, end = _last_model(text)
    if found is None or text[end:].rstrip(_SPACES) != "}":
        return None
    first, last = (start + len(text[:at].encode(codec, "surrogatepass")) for at in found)
    return ModelValue(first, last, codec)


def _last_model(text: str) -> tuple[tuple[int, int] | None, int]:
    """Where the value of the last `model` of the outermost object begins and ends, and how far `text` could be read.

    None when there is no such value, or when it is no text. `text` could be read to the end if only a brace is left.
    """
    found: tuple[int, int] | None = None
    end = _skip(text, 0)
    at = _skip(text, end + 1) if text.startswith("{", end) else len(text)
    with suppress(ValueError, RecursionError):
        while text.startswith('"', at):
            key, at = _ANY.raw_decode(text, at)
            at = _skip(text, at)
            if not text.startswith(":", at):
                break
            start = _skip(text, at + 1)
            value, stop = _ANY.raw_decode(text, start)
            if key == "model":
                found = (start, stop) if isinstance(value, str) else None
            end = _skip(text, stop)
            if not text.startswith(",", end):
                break
            at = _skip(text, end + 1)
    return found, end


def _skip(text: str, at: int) -> int:
    """Where the white space at `at` ends."""
    space = _SPACE.match(text, at)
    assert space is not None, "the pattern matches the empty text"
    return space.end()
