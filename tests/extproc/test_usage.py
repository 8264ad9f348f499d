import gc
import json
import sys
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc.token_usage import TokenUsage
from epp.extproc.usage import HEAD_BYTES, TAIL_BYTES, UsageReader

EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"
LINES = "application/x-ndjson"


def event(value: object, name: str | None = None) -> bytes:
    text = "data: " + json.dumps(value, separators=(",", ":")) + "\n\n"
    return (f"event: {name}\n{text}" if name else text).encode()


def chat_event(content: str, **more: object) -> bytes:
    return event(
        {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": content}}], **more}
    )


OPENAI_USAGE = {"prompt_tokens": 21, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
READ_OPENAI_USAGE = TokenUsage(prompt_tokens=21, completion_tokens=7, cached_tokens=16)
DONE = b"data: [DONE]\n\n"

CHAT = b"".join(
    [
        chat_event("Hi", usage=None),
        chat_event(' "usage": {"prompt_tokens": 999} \n\ndata: [DONE]\n\n', usage=None),
        event({"id": "c", "choices": [], "usage": OPENAI_USAGE}),
        DONE,
    ]
)
ANTHROPIC = b"".join(
    [
        event(
            {
                "type": "message_start",
                "message": {
                    "content": [],
                    "usage": {"input_tokens": 25, "cache_read_input_tokens": 100, "output_tokens": 1},
                },
            },
            "message_start",
        ),
        b'event: ping\ndata: {"type": "ping"}\n\n',
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}, "content_block_delta"),
        event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15}}, "message_delta"),
        event({"type": "message_stop"}, "message_stop"),
    ]
)
READ_ANTHROPIC_USAGE = TokenUsage(prompt_tokens=125, completion_tokens=15, cached_tokens=100)
RESPONSES = b"".join(
    [
        event({"type": "response.created", "response": {"id": "r", "usage": None}}, "response.created"),
        event({"type": "response.output_text.delta", "delta": "Hi"}, "response.output_text.delta"),
        event(
            {
                "response": {
                    "id": "r",
                    "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}],
                    "usage": {
                        "input_tokens": 21,
                        "input_tokens_details": {"cached_tokens": 16},
                        "output_tokens": 7,
                        "output_tokens_details": {"reasoning_tokens": 0},
                        "total_tokens": 28,
                    },
                },
                "type": "response.completed",
            },
            "response.completed",
        ),
    ]
)
OLLAMA = (
    b'{"model":"llama3.2","message":{"role":"assistant","content":"Hi \\"eval_count\\": 4,"},"done":false}\n'
    b'{"model":"llama3.2","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop",'
    b'"total_duration":4883583458,"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282}\n'
)
READ_OLLAMA_USAGE = TokenUsage(prompt_tokens=26, completion_tokens=282)

STREAMS = {
    "chat": (EVENTS, CHAT, READ_OPENAI_USAGE),
    "chat with CRLF": (EVENTS, CHAT.replace(b"\n", b"\r\n"), READ_OPENAI_USAGE),
    "chat with CR": (EVENTS, CHAT.replace(b"\n", b"\r"), READ_OPENAI_USAGE),
    "chat without spaces": (EVENTS, CHAT.replace(b"data: ", b"data:"), READ_OPENAI_USAGE),
    "chat with comments and ids": (EVENTS, CHAT.replace(b"data:", b": ping\nid: 7\ndata:"), READ_OPENAI_USAGE),
    "chat with a byte order mark": (
        EVENTS,
        b"\xef\xbb\xbf" + CHAT[CHAT.index(b'data: {"id":"c","choices":[]') :],
        READ_OPENAI_USAGE,
    ),
    "one event on several lines": (
        EVENTS,
        b'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 21,\ndata: "completion_tokens": 7, '
        b'"prompt_tokens_details": {"cached_tokens": 16}}}\n\n' + DONE,
        READ_OPENAI_USAGE,
    ),
    "anthropic": (EVENTS, ANTHROPIC, READ_ANTHROPIC_USAGE),
    "responses": (EVENTS, RESPONSES, READ_OPENAI_USAGE),
    "ollama": (LINES, OLLAMA, READ_OLLAMA_USAGE),
}
each_stream = pytest.mark.parametrize(("content_type", "body", "usage"), STREAMS.values(), ids=STREAMS)


def read(content_type: str | None, *pieces: bytes, encoding: str | None = None, end_of_stream: bool = False) -> UsageReader:
    reader = UsageReader(content_type, encoding)
    for piece in pieces:
        reader.feed(piece, False)
    if end_of_stream:
        reader.feed(b"", True)
    return reader


def cut(body: bytes, positions: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(positions), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


# ── streams ──


@each_stream
def test_a_stream_cut_at_any_byte_gives_the_same_usage(content_type: str, body: bytes, usage: TokenUsage) -> None:
    """Field report 72."""
    for position in range(len(body) + 1):
        reader = read(content_type, body[:position], body[position:])
        assert (reader.usage, reader.ended) == (usage, True), position


@each_stream
def test_a_stream_that_comes_byte_by_byte_gives_the_same_usage(content_type: str, body: bytes, usage: TokenUsage) -> None:
    """Field report 72."""
    reader = read(content_type, *(body[at : at + 1] for at in range(len(body))))

    assert (reader.usage, reader.ended) == (usage, True)


@given(positions=st.lists(st.integers(0, len(CHAT)), max_size=12), name=st.sampled_from(sorted(STREAMS)))
@settings(max_examples=200, deadline=None)
def test_a_stream_cut_anywhere_several_times_gives_the_same_usage(positions: list[int], name: str) -> None:
    content_type, body, usage = STREAMS[name]

    reader = read(content_type, *cut(body, (min(at, len(body)) for at in positions)))

    assert (reader.usage, reader.ended) == (usage, True)


@each_stream
def test_nothing_is_at_its_end_before_the_end_mark(content_type: str, body: bytes, usage: TokenUsage) -> None:
    before_the_last_document = body.rstrip().rfind(b"\r" if b"\n" not in body else b"\n")

    reader = read(content_type, body[:before_the_last_document])

    assert not reader.ended


def test_usage_nested_in_a_completed_event_is_read() -> None:
    """Field report 73."""
    assert read(EVENTS, RESPONSES).usage == READ_OPENAI_USAGE


def test_usage_in_several_events_is_put_together() -> None:
    """Field report 73."""
    assert read(EVENTS, ANTHROPIC).usage == READ_ANTHROPIC_USAGE


def test_of_running_totals_the_last_counts() -> None:
    events = [chat_event("x", usage={"prompt_tokens": 9, "completion_tokens": n}) for n in range(1, 6)]

    assert read(EVENTS, *events).usage == TokenUsage(prompt_tokens=9, completion_tokens=5)


def test_a_zero_does_not_replace_what_is_known_and_is_replaced_by_it() -> None:
    start = event({"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}})
    delta = event({"type": "message_delta", "usage": {"input_tokens": 9, "output_tokens": 4}})
    zero = event({"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 6}})

    assert read(EVENTS, start).usage == TokenUsage(prompt_tokens=0, completion_tokens=0)
    assert read(EVENTS, start, delta, zero).usage == TokenUsage(prompt_tokens=9, completion_tokens=6)


@pytest.mark.parametrize(
    "last",
    [
        DONE,
        b"data:[DONE]\r\n\r\n",
        b"event: message_stop\ndata: {}\n\n",
        event({"type": "message_stop"}),
        event({"sequence_number": 1, "type": "response.failed", "response": {"usage": None}}),
        event({"type": "response.incomplete", "response": {}}, "response.incomplete"),
        event({"response": {"output": "x" * 200_000}, "type": "response.completed"}),
        chat_event("x") + DONE,
        event({"type": "content_block_delta", "delta": {"text": "choices"}}) + event({"type": "message_stop"}),
    ],
)
def test_the_end_mark_is_seen_before_the_body_ends(last: bytes) -> None:
    """Field report 74."""
    reader = UsageReader(EVENTS, None)
    reader.feed(chat_event("Hi"), False)
    assert not reader.ended

    reader.feed(last, False)

    assert reader.ended


@pytest.mark.parametrize(
    "text",
    [
        chat_event("[DONE]"),
        chat_event("\n\ndata: [DONE]\n\n"),
        chat_event("event: message_stop"),
        event({"type": "content_block_delta", "delta": {"text": '"type":"message_stop"'}}),
        event({"type": "response.output_text.delta", "delta": "event: response.completed"}, "response.output_text.delta"),
        event({"type": "response.created", "response": {"usage": None}}, "response.created"),
        b"data: say [DONE]\n\n",
        b": [DONE]\n\n",
    ],
)
def test_an_end_mark_in_the_content_is_none(text: bytes) -> None:
    assert not read(EVENTS, text).ended
    assert not read(EVENTS, *(text[at : at + 1] for at in range(len(text)))).ended


@pytest.mark.parametrize(
    "content",
    [
        '"usage": {"prompt_tokens": 5, "completion_tokens": 5}',
        '{"usage":{"prompt_tokens":5}}',
        '\\"usage\\":{"prompt_tokens":5}',
        "usage",
        '"usage',
    ],
)
def test_usage_that_the_model_wrote_is_none(content: str) -> None:
    plain = b"data: he said " + content.encode() + b"\n\n"

    assert read(EVENTS, chat_event(content), plain, DONE).usage is None
    assert read(JSON, json.dumps({"choices": [{"message": {"content": content}}]}).encode(), end_of_stream=True).usage is None


def test_usage_elsewhere_in_an_event_is_none() -> None:
    nested = event({"choices": [{"delta": {"tool": {"usage": {"prompt_tokens": 5}}}}]})

    assert read(EVENTS, nested).usage is None


def test_a_stream_that_ends_without_a_blank_line_is_read_to_its_end() -> None:
    reader = read(EVENTS, CHAT.removesuffix(DONE).rstrip(), end_of_stream=True)

    assert (reader.usage, reader.ended) == (READ_OPENAI_USAGE, True)


def test_nothing_is_read_after_the_end() -> None:
    reader = read(EVENTS, CHAT)

    reader.feed(chat_event("x", usage={"prompt_tokens": 1_000}), False)

    assert reader.usage == READ_OPENAI_USAGE


# ── documents ──


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"choices": [], "usage": OPENAI_USAGE}, READ_OPENAI_USAGE),
        ({"usage": OPENAI_USAGE, "data": [{"embedding": [0.25] * 30_000}]}, READ_OPENAI_USAGE),
        ({"data": [{"embedding": [0.25] * 30_000}], "usage": OPENAI_USAGE}, READ_OPENAI_USAGE),
        (
            {"type": "message", "usage": {"input_tokens": 5, "cache_creation_input_tokens": 3, "output_tokens": 2}},
            TokenUsage(prompt_tokens=8, completion_tokens=2),
        ),
        ({"object": "list", "data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}, TokenUsage(prompt_tokens=8)),
        ({"response": "Hi", "done": True, "prompt_eval_count": 26, "eval_count": 282}, READ_OLLAMA_USAGE),
        ({"embeddings": [[0.25] * 40_000], "prompt_eval_count": 8}, TokenUsage(prompt_tokens=8)),
        ({"response": {"usage": OPENAI_USAGE}}, READ_OPENAI_USAGE),
        ({"usage": None, "choices": []}, None),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": True, "input_tokens": 1.5}}, None),
        ({"usage": {"prompt_tokens": 10**30, "completion_tokens": "7", "prompt_tokens_details": [1]}}, None),
        ({"usage": {"type": "duration", "seconds": 3}}, None),
        ({"usage": [1], "response": [], "message": 5}, None),
        ([{"usage": OPENAI_USAGE}], None),
    ],
)
@pytest.mark.parametrize("piece_bytes", [7, 16_384, 1_000_000])
def test_a_document_gives_its_usage_when_it_is_whole(document: object, usage: TokenUsage | None, piece_bytes: int) -> None:
    body = json.dumps(document).encode()
    reader = UsageReader(JSON, "identity")
    for at in range(0, len(body), piece_bytes):
        reader.feed(body[at : at + piece_bytes], False)
    assert not reader.ended

    reader.feed(b"", True)

    assert (reader.usage, reader.ended) == (usage, True)


@pytest.mark.parametrize("oddity", [b"NaN", b'"\\ud800"', b"1e999", b"[" * 5_000 + b"]" * 5_000])
def test_a_document_with_an_oddity_still_gives_its_usage(oddity: bytes) -> None:
    body = b'\xef\xbb\xbf{"odd":' + oddity + b',"usage":' + json.dumps(OPENAI_USAGE).encode() + b"}"

    assert read(JSON, body, end_of_stream=True).usage == READ_OPENAI_USAGE


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [(JSON, "gzip"), (EVENTS, "br"), ("audio/wav", None), ("text/plain", None), (None, "zstd")],
)
def test_what_cannot_be_read_is_left_alone(content_type: str | None, encoding: str | None) -> None:
    body = json.dumps({"usage": OPENAI_USAGE}).encode()

    reader = read(content_type, body, CHAT, encoding=encoding, end_of_stream=True)

    assert (reader.usage, reader.ended) == (None, True)


@pytest.mark.parametrize("body", [CHAT, json.dumps({"usage": OPENAI_USAGE}).encode()])
def test_without_a_content_type_the_format_is_recognised(body: bytes) -> None:
    assert read(None, b"", body[:1], body[1:], end_of_stream=True).usage == READ_OPENAI_USAGE


# ── bounds ──


@given(
    pieces=st.lists(st.binary(max_size=60) | st.sampled_from([CHAT, OLLAMA, b'"usage":{', b"\n\n", b"\xef\xbb\xbf", b"data:"])),
    content_type=st.sampled_from([EVENTS, JSON, LINES, None, "audio/wav", ""]),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_taken(pieces: list[bytes], content_type: str | None) -> None:
    reader = read(content_type, *pieces, end_of_stream=True)

    assert reader.ended


def held_bytes(reader: UsageReader) -> int:
    held = reader._held
    return sum(map(sys.getsizeof, (reader, held, held.head, held.tail)))


@pytest.mark.parametrize("content_type", [EVENTS, JSON, LINES])
@pytest.mark.parametrize("piece", [b"x" * 65_536, b'data: {"usage":{' * 4_096, b'"usage":{"prompt_tokens":1},' * 2_048])
def test_a_hundred_megabytes_without_a_border_take_bounded_memory(content_type: str, piece: bytes) -> None:
    reader = UsageReader(content_type, None)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(100_000_000 // len(piece)):
            reader.feed(piece, False)
            assert held_bytes(reader) < 2 * (HEAD_BYTES + 2 * TAIL_BYTES)
        reader.feed(b"", True)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()

    assert reader.ended
    assert held_bytes(reader) < 1_000


def test_a_document_in_one_very_long_piece_is_not_copied() -> None:
    """Field report 26: an answer of 44 MB with embeddings came in one message."""
    document = b'{"data":[' + b"0.0123," * 6_000_000 + b'0],"usage":{"prompt_tokens":8}}'
    reader = UsageReader(JSON, None)
    tracemalloc.start()
    try:
        reader.feed(document, True)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

    assert reader.usage == TokenUsage(prompt_tokens=8)


def test_an_event_too_long_to_be_held_still_gives_its_usage_and_its_end() -> None:
    completed = event(
        {
            "type": "response.completed",
            "response": {"output": [{"text": "usage " * 50_000}], "usage": {"input_tokens": 21, "output_tokens": 7}},
        },
        "response.completed",
    )

    reader = read(EVENTS, *(completed[at : at + 4_000] for at in range(0, len(completed), 4_000)))

    assert (reader.usage, reader.ended) == (TokenUsage(prompt_tokens=21, completion_tokens=7), True)


def test_token_events_leave_nothing_behind() -> None:
    reader = UsageReader(EVENTS, None)

    for _ in range(1_000):
        reader.feed(chat_event("token"), False)

    assert reader._held.size_bytes == 0
    assert reader.usage is None
