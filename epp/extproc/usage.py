"""The token usage of a response, read from the pieces of its body as they pass.

Three formats say it: one JSON document, server-sent events, and JSON lines (Ollama). An ordinary token event costs a few
searches in its bytes and is neither decoded nor copied; a document that comes in several pieces is held until it is whole,
and of a long one only both ends. Nothing here fails: what cannot be read gives no usage.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from epp.extproc.token_usage import USAGE_OBJECT, TokenUsage, known_usage, number_in, usage_in, usage_somewhere_in

HEAD_BYTES = 16_384
TAIL_BYTES = 65_536
"""What is held of a document longer than `HEAD_BYTES` + 2 × `TAIL_BYTES`: servers write usage last, a few of them first."""

_UTF8_BOM = b"\xef\xbb\xbf"
_LAST_LINE = re.compile(rb'"done"\s*:\s*true\b')
_LAST_EVENTS = ("message_stop", "response.completed", "response.failed", "response.incomplete")
"""The events that end a stream of Anthropic messages or of OpenAI responses."""
_LAST_EVENT_NAMES = tuple(name.encode() for name in _LAST_EVENTS)
_LAST_EVENT_TYPES = tuple(msgspec.Raw(f'"{name}"') for name in _LAST_EVENTS)
_LAST_EVENT = re.compile(rb'(?m:^event: ?|"type"\s*:\s*")(?:%b)\b' % b"|".join(map(re.escape, _LAST_EVENT_NAMES)))

_ABSENT = msgspec.Raw()
_TRUE = msgspec.Raw(b"true")


class UsageReader:
    """Reads the body of one response in pieces of any size; where it is cut makes no difference.

    Holds at most `HEAD_BYTES` + 2 × `TAIL_BYTES` between two pieces, whatever comes.

    Attributes:
        usage: What was found so far; None for nothing.
        ended: The response is whole: the end mark of its stream (`[DONE]`, `message_stop`, `response.completed`, …) or
            the end of its body was seen.
    """

    __slots__ = ("_format", "_held", "_undeclared", "ended", "usage")

    def __init__(self, content_type: str | None, content_encoding: str | None) -> None:
        """Args are header values, None when absent. Compressed bodies and other types than JSON and events are not read."""
        compressed = (content_encoding or "").strip().lower() not in ("", "identity")
        self.usage: TokenUsage | None = None
        self.ended = False
        self._format = None if compressed else _format_of(content_type or "")
        self._undeclared = not content_type and not compressed
        self._held = _HeldBytes()

    def feed(self, chunk: bytes, end_of_stream: bool) -> None:
        """Take the next piece of the body, which may be empty; after the end nothing more is looked at."""
        if self._undeclared and chunk:
            self._undeclared = False
            self._format = _WHOLE if chunk.lstrip().startswith(b"{") else _EVENTS
        form = self._format
        if form is not None:
            if not self._held.size_bytes and chunk.endswith(form.piece_ends):
                if form.matters(chunk):
                    self._read_documents(chunk, form)
            elif chunk:
                self._cut(chunk, form)
            if end_of_stream:
                self._read_held(form)
        if end_of_stream or self.ended:
            self.ended = True
            self._format = None
            self._undeclared = False
            self._held = _HeldBytes()

    def _cut(self, chunk: bytes, form: "_Format") -> None:
        """Read the documents that end in this piece, and hold the beginning of the one that does not."""
        if not form.separators:
            self._held.add(chunk)
            return
        if self._held.size_bytes:
            seam = self._held.last_two_bytes()
            first_end = _first_end(seam + chunk, form.separators)
            if not first_end:
                self._held.add(chunk)
                return
            self._held.add(chunk[: first_end - len(seam)])
            self._read_held(form)
            chunk = chunk[first_end - len(seam) :]
        last_end = _last_end(chunk, form.separators)
        if last_end and form.matters(chunk[:last_end]):
            self._read_documents(chunk[:last_end], form)
        self._held.add(chunk[last_end:])

    def _read_held(self, form: "_Format") -> None:
        held, self._held = self._held, _HeldBytes()
        text = bytes(held.head + held.tail)
        if len(text) == held.size_bytes:
            if form.matters(text):
                self._read_documents(text, form)
            return
        head, tail = bytes(held.head), bytes(held.tail[-TAIL_BYTES:])
        ended = any(form.last_mark.search(end) for end in (head, tail)) if form.last_mark else False
        self._note(usage_somewhere_in(tail) or usage_somewhere_in(head), ended)

    def _read_documents(self, text: bytes, form: "_Format") -> None:
        for document in form.split(text):
            self._note(*form.read(document))

    def _note(self, usage: TokenUsage | None, ended: bool) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage.updated(usage)
        self.ended |= ended


class _HeldBytes:
    """A document that is still coming, or both ends of it when it is long.

    Attributes:
        size_bytes: Length of the document so far; more than head and tail when the middle had to be dropped.
    """

    __slots__ = ("head", "size_bytes", "tail")

    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        room_bytes = HEAD_BYTES - len(self.head)
        if room_bytes:
            self.head += piece[:room_bytes]
        self.tail += piece[max(room_bytes, len(piece) - 2 * TAIL_BYTES) :]
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]  # half at a time, so that each byte is moved about once

    def last_two_bytes(self) -> bytes:
        return bytes(self.head[-2:] + self.tail[-2:])[-2:]


class _Document(msgspec.Struct, gc=False):
    """The members of a response, or of one event of it, that are looked at; as raw JSON."""

    type: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT  # OpenAI responses, in events
    message: msgspec.Raw = _ABSENT  # Anthropic messages, in events
    done: msgspec.Raw = _ABSENT  # Ollama
    prompt_eval_count: msgspec.Raw = _ABSENT
    eval_count: msgspec.Raw = _ABSENT


_DOCUMENT = msgspec.json.Decoder(_Document)
_UNREADABLE = _Document()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How documents follow one another in a body.

    Attributes:
        separators: What may stand between two documents; none when the body is one document.
        piece_ends: Ends of a piece with which a document certainly ends too.
        matters: Whether documents may say anything of interest. Quick; a wrong yes costs only time.
        split: The documents in a text.
        read: What one document says: its usage, and whether it is the last one.
        last_mark: What only the last document has, to be looked for in a document that is not whole.
    """

    separators: tuple[bytes, ...]
    piece_ends: tuple[bytes, ...]
    matters: Callable[[bytes], bool]
    split: Callable[[bytes], list[bytes]]
    read: Callable[[bytes], tuple[TokenUsage | None, bool]]
    last_mark: re.Pattern[bytes] | None


def _format_of(content_type: str) -> _Format | None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "text/event-stream":
        return _EVENTS
    if "json" not in media_type:
        return None
    return _LINES if media_type.endswith(("ndjson", "jsonl", "jsonlines", "stream+json")) else _WHOLE


def _first_end(text: bytes, separators: tuple[bytes, ...]) -> int:
    """Where the first separator ends; 0 when there is none."""
    return min((at + len(separator) for separator in separators if (at := text.find(separator)) >= 0), default=0)


def _last_end(text: bytes, separators: tuple[bytes, ...]) -> int:
    """Where the last separator ends; 0 when there is none."""
    return max((at + len(separator) for separator in separators if (at := text.rfind(separator)) >= 0), default=0)


# ── server-sent events (WHATWG HTML, section 9.2.6) ──


def _events_matter(text: bytes) -> bool:
    if USAGE_OBJECT.search(text):
        return True
    if b'"choices":[' in text and text.endswith((b"}\n\n", b"}\r\n\r\n")):
        return False  # token events of completions, whose end mark would be last and is no JSON
    return b"[DONE]" in text or b"message_stop" in text or b'"response"' in text


def _split_events(text: bytes) -> list[bytes]:
    return text.removeprefix(_UTF8_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")


def _read_event(event: bytes) -> tuple[TokenUsage | None, bool]:
    lines = event.split(b"\n")
    pieces = list(_values(lines, b"data:"))
    ended = b"[DONE]" in pieces or any(name in _LAST_EVENT_NAMES for name in _values(lines, b"event:"))
    text = b"\n".join(pieces)
    if not (USAGE_OBJECT.search(text) or _LAST_EVENT.search(text)):
        return None, ended
    usage, document = _read_json(text)
    return usage, ended or document.type in _LAST_EVENT_TYPES


def _values(lines: list[bytes], field: bytes) -> Iterator[bytes]:
    return (line[len(field) :].strip() for line in lines if line.startswith(field))


# ── JSON lines, and one JSON document ──


def _lines_matter(text: bytes) -> bool:
    return bool(b'eval_count"' in text or USAGE_OBJECT.search(text) or _LAST_LINE.search(text))


def _split_lines(text: bytes) -> list[bytes]:
    return text.split(b"\n")


def _read_line(line: bytes) -> tuple[TokenUsage | None, bool]:
    usage, document = _read_json(line)
    return usage, document.done == _TRUE


def _whole_matters(_text: bytes) -> bool:
    return True


def _one_document(text: bytes) -> list[bytes]:
    return [text.removeprefix(_UTF8_BOM)]


def _read_whole(text: bytes) -> tuple[TokenUsage | None, bool]:
    return _read_json(text)[0], True


def _read_json(text: bytes) -> tuple[TokenUsage | None, _Document]:
    try:
        document = _DOCUMENT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        # Some servers write NaN and lone surrogates, which are no JSON.
        return (usage_somewhere_in(text) if text.lstrip().startswith(b"{") else None), _UNREADABLE
    usage = usage_in(document.usage) or _nested_usage_in(document.response) or _nested_usage_in(document.message)
    return usage or known_usage(number_in(document.prompt_eval_count), number_in(document.eval_count), None), document


_EVENTS = _Format(
    separators=(b"\n\n", b"\n\r\n", b"\r\r"),
    piece_ends=(b"\n\n", b"\r\n\r\n"),
    matters=_events_matter,
    split=_split_events,
    read=_read_event,
    last_mark=_LAST_EVENT,
)
_LINES = _Format(
    separators=(b"\n",),
    piece_ends=(b"\n",),
    matters=_lines_matter,
    split=_split_lines,
    read=_read_line,
    last_mark=_LAST_LINE,
)
_WHOLE = _Format(separators=(), piece_ends=(), matters=_whole_matters, split=_one_document, read=_read_whole, last_mark=None)


def _nested_usage_in(raw: msgspec.Raw) -> TokenUsage | None:
    if len(raw) == 0 or memoryview(raw)[0] != ord("{"):
        return None
    try:
        return usage_in(_DOCUMENT.decode(raw).usage)
    except (msgspec.DecodeError, RecursionError):
        return None
