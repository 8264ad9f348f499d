import base64
import gzip
import json
import random
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc.multipart import MAX_FIELD_BYTES, WINDOW_BYTES, form_fields
from epp.extproc.prompt import MEDIA_TOKENS, Prompt
from epp.extproc.request_body import MAX_LENIENT_BODY_BYTES, RequestBody, read_request_body
from tests.extproc.work import least_s

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

CHAT = "/v1/chat/completions"
NOTHING = RequestBody()


def read(body: object, path: str = CHAT) -> RequestBody:
    return read_request_body(path, "application/json", None, json.dumps(body).encode())


def raw(body: bytes, path: str = CHAT) -> RequestBody:
    return read_request_body(path, "application/json", None, body)


def prompt_of(body: object, path: str = CHAT) -> Prompt:
    prompt = read(body, path).prompt
    assert prompt is not None
    return prompt


def prefix_of(body: object, path: str = CHAT) -> bytes:
    return prompt_of(body, path).prefix(1_000)


# ── shapes ──

MESSAGES = [{"role": "user", "content": "hello"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:"}}]}]


@pytest.mark.parametrize(
    ("path", "body", "in_prefix"),
    [
        (CHAT, {"messages": MESSAGES}, b"hello"),
        (CHAT, {"messages": PARTS}, b"hello"),
        (CHAT, {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "look"}}]}, b"look"),
        ("/v1/completions", {"prompt": "hello"}, b"hello"),
        ("/v1/completions", {"prompt": ["hello", "you"]}, b"hello"),
        ("/v1/completions", {"prompt": [5, 6, 7]}, b"5,6,7"),
        ("/v1/completions", {"prompt": [[5, 6, 7], [8, 9]]}, b"5,6,7"),
        ("/v1/embeddings", {"input": "hello"}, b"hello"),
        ("/v1/embeddings", {"input": ["hello", "you"]}, b"hello"),
        ("/v1/embeddings", {"input": [5, 6, 7]}, b"5,6,7"),
        ("/v1/embeddings", {"input": [[5, 6, 7], [8, 9]]}, b"5,6,7"),
        ("/v1/responses", {"input": "hello", "instructions": "be brief"}, b"be brief"),
        ("/v1/responses", {"input": MESSAGES, "prompt": {"id": "pmpt_1"}}, b"hello"),
        ("/v1/conversations", {"items": MESSAGES}, b"hello"),
        ("/v1/messages", {"messages": MESSAGES, "system": "be brief"}, b"be brief"),
        ("/v1/messages", {"messages": MESSAGES, "system": [{"type": "text", "text": "be brief"}]}, b"be brief"),
        ("/inference/v1/generate", {"token_ids": [5, 6, 7]}, b"5,6,7"),
        ("/api/chat", {"messages": MESSAGES}, b"hello"),
        ("/api/generate", {"prompt": "hello", "system": "be brief"}, b"be brief"),
        ("/generate", {"inputs": "hello"}, b"hello"),
        ("/generate", {"text": "hello"}, b"hello"),
        ("/generate", {"input_ids": [[5, 6, 7], [8]]}, b"5,6,7"),
        ("/some/other/path", {"messages": MESSAGES}, b"hello"),
        ("", {"input": "hello"}, b"hello"),
    ],
)
def test_every_shape_of_a_prompt_is_recognised(path: str, body: dict[str, object], in_prefix: bytes) -> None:
    """Field report 21."""
    request = read({"temperature": 0.5, **body, "model": "qwen", "seed": 7}, path)

    assert request.model == "qwen"
    assert not request.opaque
    assert request.prompt is not None
    assert in_prefix in request.prompt.prefix(1_000)


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"messages": 5, "prompt": {"a": 1}}, {"input": True}])
def test_a_prompt_of_no_known_form_is_none(body: dict[str, object]) -> None:
    request = read({"model": "qwen", **body})

    assert (request.model, request.prompt, request.prompt_tokens) == ("qwen", None, None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, b"chat"),
        ("/v1/completions?a=b/chat/completions", b"text"),
        ("/openai/v1/completions/", b"text"),
        ("/v1/embeddings", b"embed"),
        ("/elsewhere", b"chat"),
    ],
)
def test_where_the_shape_leaves_a_choice_the_path_decides(path: str, expected: bytes) -> None:
    body = {"messages": [{"role": "user", "content": "chat"}], "prompt": "text", "input": "embed"}

    assert expected in prefix_of(body, path)


def test_a_body_in_pieces_is_the_same_body() -> None:
    body = json.dumps({"model": "qwen", "messages": MESSAGES, "max_tokens": 9}).encode()

    for piece_bytes in (1, 7, len(body)):
        pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]
        request = read_request_body(CHAT, None, None, pieces)
        assert (request.model, request.max_output_tokens) == ("qwen", 9)
        assert request.prompt is not None
        assert request.prompt.prefix(1_000) == prefix_of({"messages": MESSAGES})


def test_a_bytearray_can_grow_on_while_its_request_lives() -> None:
    body = bytearray(b'{"model":"qwen","prompt":"hello"}')
    request = read_request_body(CHAT, None, None, body)

    body += b" " * 10_000

    assert (request.model, request.prompt_tokens) == ("qwen", 1)


# ── model, stream, output tokens ──


@pytest.mark.parametrize(
    ("value", "model"),
    [
        (b'"qwen"', "qwen"),
        (b'"Qwen\\/Qwen3-\\u0033\\u0032B"', "Qwen/Qwen3-32B"),
        ('"模型-7b:latest"'.encode(), "模型-7b:latest"),
        (b'"' + b"m" * 256 + b'"', "m" * 256),
        (b'"' + b"\\ud83d\\ude00" * 256 + b'"', "😀" * 256),
        (b'"' + b"m" * 257 + b'"', None),
        (b'"' + b"m" * 1_000_000 + b'"', None),
        (b'""', None),
        (b'"a\\nb"', None),
        (b'"a\\u0000"', None),
        (b'"\\ud800"', None),
        (b'"\xff\xfe"', None),
        (b"null", None),
        (b"5", None),
        (b"true", None),
        (b'["qwen"]', None),
        (b'{"model":"qwen"}', None),
        (b"[" * 500 + b"]" * 500, None),
    ],
)
def test_only_a_short_printable_text_is_a_model(value: bytes, model: str | None) -> None:
    request = raw(b'{"max_tokens":3,"model":' + value + b"}")

    assert (request.model, request.max_output_tokens) == (model, 3)


def test_of_a_repeated_key_the_last_counts() -> None:
    """Field report 24."""
    assert raw(b'{"model":"a","metadata":{"model":"nested"},"model":"b"}').model == "b"


def test_a_model_of_something_nested_is_not_the_model() -> None:
    assert read({"messages": [{"model": "nested"}]}).model is None


@pytest.mark.parametrize(
    ("path", "body", "stream"),
    [
        (CHAT, {"stream": True}, True),
        (CHAT, {"stream": False}, False),
        (CHAT, {"stream": None}, False),
        (CHAT, {"stream": "true"}, False),
        (CHAT, {}, False),
        ("/api/chat", {}, True),
        ("/api/generate?x=1", {}, True),
        ("/api/chat", {"stream": False}, False),
        ("/generate_stream", {}, True),
        ("/generate", {}, False),
    ],
)
def test_a_request_streams_when_it_says_so_or_its_api_does(path: str, body: dict[str, object], stream: bool) -> None:
    assert read(body, path).stream is stream


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 128}, 128),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 128, "max_completion_tokens": 64}, 64),
        ({"max_output_tokens": 32}, 32),
        ({"options": {"num_predict": 16, "num_ctx": 8}}, 16),
        ({"parameters": {"max_new_tokens": 20}}, 20),
        ({"sampling_params": {"max_new_tokens": 21}}, 21),
        ({"sampling_params": {"max_tokens": 22}}, 22),
        ({"options": {"num_predict": -1}}, None),
        ({"options": [5], "parameters": None, "sampling_params": "x"}, None),
        ({"sampling_params": [{"max_new_tokens": 21}]}, None),
        ({"max_tokens": 12345678901234567890}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 1.5}, None),
        ({"max_tokens": "7"}, None),
        ({"max_tokens": None}, None),
        ({}, None),
    ],
)
def test_the_longest_answer_is_read_from_where_each_api_has_it(body: dict[str, object], tokens: int | None) -> None:
    assert read(body).max_output_tokens == tokens


# ── prompts ──


def test_equal_token_ids_have_equal_prefixes_in_every_form() -> None:
    """Field report 21."""
    forms = [
        b'{"prompt":[5,6,7]}',
        b'{"prompt": [ 5, 6,\n7 ] }',
        b'{"prompt":[[5,6,7]]}',
        b'{"input":[ [5, 6, 7] ]}',
        b'{"input_ids":[5,6,7]}',
        b'{"token_ids":[5,6,7]}',
    ]
    prompts = [raw(form, "/x").prompt for form in forms]

    assert {prompt.prefix(100) for prompt in prompts if prompt} == {b"5,6,7\0"}
    assert [prompt.estimated_tokens() for prompt in prompts if prompt] == [3] * len(forms)


def test_the_same_text_alone_and_in_a_list_has_the_same_prefix() -> None:
    assert prefix_of({"prompt": "hello ] there"}) == prefix_of({"prompt": ["hello ] there"]}) == b"hello ] there\0"


def test_a_conversation_that_goes_on_begins_with_the_earlier_one() -> None:
    earlier = prefix_of({"system": "be brief", "messages": MESSAGES}).rstrip(b"\0")
    later = prefix_of({"system": "be brief", "messages": [*MESSAGES, {"role": "assistant", "content": "hi"}]})

    assert later.startswith(earlier)


def test_other_tools_system_text_or_salt_give_another_prefix() -> None:
    bodies: list[dict[str, object]] = [
        {},
        {"tools": [{"name": "a"}]},
        {"system": "a"},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
    ]

    assert len({prefix_of({"messages": MESSAGES, **body}) for body in bodies}) == len(bodies)


@pytest.mark.parametrize("prompt", ["hello there", [1234, 5678, 91011], ["a", "b"]])
def test_a_shorter_prefix_is_the_beginning_of_a_longer_one(prompt: object) -> None:
    prefixes = [prompt_of({"prompt": prompt, "cache_salt": "s", "tools": []}).prefix(limit) for limit in range(60)]

    assert all(longer.startswith(shorter) for shorter, longer in pairwise(prefixes))
    assert all(len(prefix) <= limit for limit, prefix in enumerate(prefixes))
    assert prefixes[0] == b""


def test_a_prompt_is_estimated_at_a_quarter_token_a_byte() -> None:
    assert read({"prompt": "word " * 4_000}).prompt_tokens == pytest.approx(5_000, rel=0.01)
    assert read({"prompt": "a" * 20_000}).prompt_tokens == pytest.approx(5_000, rel=0.01)
    assert read({"messages": [], "prompt": ""}).prompt_tokens == 0


@pytest.mark.parametrize("count", [2, 1_000, 50_000])
def test_token_ids_are_counted(count: int) -> None:
    numbers = random.Random(7)
    ids = [numbers.randrange(10_000, 100_000) for _ in range(count)]

    assert read({"prompt": ids}).prompt_tokens == pytest.approx(count, rel=0.01)
    assert read({"prompt": [ids[: count // 2], ids[count // 2 :]]}).prompt_tokens == pytest.approx(count, rel=0.01, abs=1)


def test_an_image_is_not_counted_as_text() -> None:
    image = base64.b64encode(random.Random(7).randbytes(1_000_000)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}

    assert read({"messages": [{"role": "user", "content": [part]}]}).prompt_tokens == MEDIA_TOKENS


# ── bodies that are no request ──


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \r\n",
        b"null",
        b"[]",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"model":"qwen","messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b"5",
        b"NaN",
        b'"model"',
        b"true",
        b'{"model":"qwen"',
        b'{"model":"qwen"} trailing',
        b'{"model":"qwen"}{"model":"qwen"}',
        b'{"model":"qwen",}',
        b"{model:'qwen'}",
        b"model=qwen&prompt=hello",
        b"\xff\xfe\xff\xff",
        b"\xef\xbb\xbf",
        b"\x00" * 100,
        b'{"n":' + b"9" * 5_000 + b',"s":"\\ud800"}',
        b'{"model":"qwen","prompt":"' + b"x" * MAX_LENIENT_BODY_BYTES + b'\\ud800"}',
    ],
)
def test_a_broken_body_says_nothing(body: bytes) -> None:
    assert raw(body) == NOTHING
    assert read_request_body("/anything", None, None, [body]) == NOTHING


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"qwen","prompt":"hello","seed":12345678901234567890}',
        b'{"prompt":"hello","p":1e999,"model":"qwen"}',
        b'{"prompt":"hello","p":NaN,"q":-Infinity,"model":"qwen"}',
        b'{"prompt":"hello","cut":"\\ud83d","model":"qwen"}',
        b'\xef\xbb\xbf \n{"prompt":"hello","model":"qwen"}',
        '{"prompt":"hello","model":"qwen"}'.encode("utf-16"),
        '{"prompt":"hello","model":"qwen"}'.encode("utf-16-be"),
        '{"prompt":"hello","model":"qwen"}'.encode("utf-32"),
        b'\t{ "prompt" : "hello" , "mod\\u0065l" : "qwen" }\n',
        b'{"prompt":"hello","other":"\xff\xfe","model":"qwen"}',
    ],
)
def test_an_odd_body_is_read_as_model_servers_read_it(body: bytes) -> None:
    """Field report 24."""
    request = raw(body)

    assert request.model == "qwen"
    assert request.prompt is not None
    assert request.prompt.prefix(100) == b"hello\0"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["model", "stream", "messages", "prompt", "input", "system", "tools", "options", "max_tokens", "cache_salt"]


@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES), path=st.sampled_from([CHAT, "/v1/responses", "/api/chat", "?"])
)
@settings(max_examples=200, deadline=None)
def test_json_of_any_shape_gives_a_result(body: dict[str, object], path: str) -> None:
    request = read(body, path)

    model = body.get("model")
    if isinstance(model, str) and model and model.isprintable():
        assert request.model == model
    else:
        assert request.model is None
    assert request.prompt_tokens is None or request.prompt_tokens >= 0
    if request.prompt is not None:
        assert len(request.prompt.prefix(10)) <= 10


@given(
    body=st.binary()
    | st.lists(st.binary(max_size=8))
    | st.text().map(lambda text: f'{{"model":"{text}"}}'.encode("utf-8", "replace")),
    path=st.text(),
    content_type=st.none() | st.text() | st.sampled_from(["multipart/form-data; boundary=x", "multipart/form-data"]),
    content_encoding=st.none() | st.text(max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_result(
    body: bytes | list[bytes], path: str, content_type: str | None, content_encoding: str | None
) -> None:
    request = read_request_body(path, content_type, content_encoding, body)

    assert request.model is None or request.model.isprintable()


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 1_000_000,
        b'{"model":' * 100_000,
        b'{"model":"' + b"\\u0041" * 160_000 + b'"}',
        b'{"max_tokens":' + b"9" * 1_000_000 + b"}",
        b'{"a":"' + b"\\" * 1_000_001,
        b'{"model":"a",' * 80_000,
        b" " * 1_000_000 + b"{}",
        b'{"prompt":[' + b"[" * 400 + b" " * 500_000 + b"]" * 400 + b"]}",
    ],
    ids=range(8),
)
def test_the_time_for_a_hostile_megabyte_is_bounded(hostile: bytes) -> None:
    """It is about that for which Python's own reader takes an ordinary one; what is not linear takes hundreds of times as long."""

    def look() -> RequestBody:
        request = raw(hostile)
        if request.prompt is not None:
            request.prompt.prefix(100)
        return request

    ordinary = b'{"model":"a","prompt":"' + b"word " * 200_000 + b'"}'

    request = look()

    assert request.prompt_tokens is None or request.prompt_tokens >= 0
    assert least_s(look) < 50 * least_s(lambda: json.loads(ordinary))


# ── compressed bodies and other formats ──


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "GZIP", "gzip, identity", "unheard-of"])
def test_a_compressed_body_is_not_inspected(encoding: str) -> None:
    """Field report 23."""
    body = gzip.compress(b'{"model":"qwen"}')

    assert read_request_body(CHAT, "application/json", encoding, body) == RequestBody(opaque=True)


def test_a_compressed_body_that_would_expand_a_thousand_times_costs_nothing() -> None:
    """Field report 23."""
    compressor = zlib.compressobj(wbits=31)
    header = compressor.compress(b" ") + compressor.flush(zlib.Z_FULL_FLUSH)
    megabyte = compressor.compress(b" " * 1_000_000) + compressor.flush(zlib.Z_FULL_FLUSH)
    bomb = header + megabyte * 1_000 + compressor.flush()
    assert len(zlib.decompressobj(wbits=31).decompress(bomb, 50_000_000)) == 50_000_000
    tracemalloc.start()
    try:
        for content_encoding in ("gzip", None):
            assert read_request_body(CHAT, "application/json", content_encoding, bomb).model is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_an_identity_encoding_is_none() -> None:
    assert read_request_body(CHAT, None, " Identity", b'{"model":"qwen"}').model == "qwen"


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_json_is_recognised_under_any_content_type(content_type: str | None) -> None:
    assert read_request_body(CHAT, content_type, None, b'{"model":"qwen"}').model == "qwen"


@pytest.mark.parametrize(
    ("content_type", "opaque"),
    [("audio/wav", True), ("application/x-protobuf", True), ("application/json; charset=utf-8", False), (None, False)],
)
def test_another_format_is_opaque_and_broken_json_is_not(content_type: str | None, opaque: bool) -> None:
    assert read_request_body(CHAT, content_type, None, b"RIFF\x00\x00").opaque is opaque


# ── forms ──

BOUNDARY = "------------------------d74496d66958873e"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
SPEECH = "/v1/audio/transcriptions"


def field(name: str, value: bytes, extra: str = "") -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + value + b"\r\n"


def file(size_bytes: int) -> bytes:
    content = random.Random(7).randbytes(size_bytes)
    return field("file", content, '; filename="model"\r\nContent-Type: audio/wav')


END = f"--{BOUNDARY}--\r\n".encode()
MODEL = field("model", b"whisper-1")


def read_form(*parts: bytes, piece_bytes: int = 16_000, content_type: str = FORM) -> RequestBody:
    body = b"".join((*parts, END))
    pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]
    whole = read_request_body(SPEECH, content_type, None, body)
    assert read_request_body(SPEECH, content_type, None, pieces) == whole
    return whole


@pytest.mark.parametrize("file_bytes", [0, 100, WINDOW_BYTES, 2_000_000])
@pytest.mark.parametrize("piece_bytes", [1_000, 16_384, 10_000_000])
def test_the_model_of_an_upload_is_found_on_either_side_of_the_file(file_bytes: int, piece_bytes: int) -> None:
    """Field report 22."""
    upload = file(file_bytes)
    found = RequestBody(model="whisper-1", stream=True)

    assert read_form(MODEL, field("stream", b"true"), upload, piece_bytes=piece_bytes) == found
    assert read_form(upload, field("stream", b"true"), MODEL, piece_bytes=piece_bytes) == found
    assert read_form(field("stream", b"True"), upload, MODEL, piece_bytes=piece_bytes) == found


def test_a_large_upload_is_not_copied() -> None:
    """Field report 22."""
    upload = file(20_000_000)
    pieces = [MODEL, *(upload[at : at + 16_384] for at in range(0, len(upload), 16_384)), END]
    tracemalloc.start()
    try:
        assert read_request_body(SPEECH, FORM, None, pieces).model == "whisper-1"
        assert tracemalloc.get_traced_memory()[1] < 6 * WINDOW_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (file(200_000), MODEL, file(200_000)),
        (field("model", b""),),
        (field("model", b"m" * 300),),
        (field("model", b"m" * (MAX_FIELD_BYTES + 1)),),
        (field("model", b"\xff"),),
        (field("prompt", b'name="model"\r\n\r\nwhisper-1'),),
        (field("model", b"whisper-1", '; filename="x"'),),
        (MODEL[:-30],),
        (b"\r\n\r\n" * 10_000,),
    ],
    ids=range(10),
)
def test_a_form_without_a_model_in_reach_is_opaque(parts: tuple[bytes, ...]) -> None:
    request = read_form(*parts)

    assert (request.model, request.opaque) == (None, True) or request.model == "�"


@pytest.mark.parametrize(
    "content_type",
    [
        f'multipart/form-data; boundary="{BOUNDARY}"',
        f"Multipart/Form-Data;charset=utf-8;Boundary={BOUNDARY}",
        f"multipart/form-data; boundary={BOUNDARY}; charset=utf-8",
    ],
)
def test_the_boundary_is_read_in_every_spelling(content_type: str) -> None:
    assert read_form(MODEL, content_type=content_type).model == "whisper-1"


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; x=y"])
def test_a_form_without_a_boundary_is_opaque(content_type: str) -> None:
    assert read_form(MODEL, content_type=content_type) == RequestBody(opaque=True)


def test_of_several_fields_of_one_name_the_last_counts() -> None:
    assert form_fields(FORM, [field("a", b"1"), MODEL, field("a", b"2"), END]) == {"a": b"2", "model": b"whisper-1"}


def test_field_names_may_come_without_quotes_and_in_other_headers_order() -> None:
    part = f"--{BOUNDARY}\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; name=model\r\n\r\nx\r\n".encode()

    assert form_fields(FORM, [part, END]) == {"model": b"x"}


def test_a_long_field_is_taken_for_a_file() -> None:
    assert form_fields(FORM, [field("prompt", b"x" * (MAX_FIELD_BYTES + 1)), MODEL, END]) == {"model": b"whisper-1"}
