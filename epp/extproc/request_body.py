"""What a request body asks for: the model, the prompt, whether the answer streams, how long it may get.

The body is checked and cut into raw pieces of JSON in one pass; only the few small values that are needed become Python
objects. Nothing here fails: a body that cannot be read gives a `RequestBody` that knows nothing, and such a request is
routed by load.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from epp.extproc.multipart import form_fields
from epp.extproc.prompt import Prompt

MAX_MODEL_CHARS = 256
"""A longer name is no model's name; it must not become the label of a metric or part of a log line."""
MAX_LENIENT_BODY_BYTES = 262_144
"""Up to this size, JSON that only Python's own reader takes is read too, which costs 1–5 ms instead of 0.3."""

_ABSENT = msgspec.Raw()
_TRUE = msgspec.Raw(b"true")
_MAX_MODEL_JSON_BYTES = 12 * MAX_MODEL_CHARS + 2  # a character outside the BMP may be escaped as 12 bytes
_MAX_COUNT_DIGITS = 10
_UTF8_BOM = b"\xef\xbb\xbf"
_STREAMS_BY_DEFAULT = ("/api/chat", "/api/generate", "/generate_stream")  # Ollama; TGI

_PROMPT_FIELD_OF_PATH = (
    ("/chat/completions", "messages"),
    ("/completions", "prompt"),
    ("/embeddings", "input"),
    ("/responses", "input"),
    ("/conversations", "items"),
    ("/v1/messages", "messages"),
    ("/inference/v1/generate", "token_ids"),
    ("/api/chat", "messages"),
    ("/api/generate", "prompt"),
)


class _Fields(msgspec.Struct, gc=False):
    """The members of a request that are looked at, each as raw JSON; of a repeated one the last, as in model servers."""

    model: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT
    # What the model is to read.
    tools: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT  # Anthropic, Ollama
    instructions: msgspec.Raw = _ABSENT  # OpenAI responses
    messages: msgspec.Raw = _ABSENT  # OpenAI chat, Anthropic, Ollama
    prompt: msgspec.Raw = _ABSENT  # OpenAI completions, Ollama
    input: msgspec.Raw = _ABSENT  # OpenAI embeddings and responses
    items: msgspec.Raw = _ABSENT  # OpenAI conversations
    inputs: msgspec.Raw = _ABSENT  # TGI
    text: msgspec.Raw = _ABSENT  # SGLang
    input_ids: msgspec.Raw = _ABSENT  # SGLang
    token_ids: msgspec.Raw = _ABSENT  # vLLM /inference/v1/generate
    # How much it may write.
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT  # OpenAI chat
    max_output_tokens: msgspec.Raw = _ABSENT  # OpenAI responses
    options: msgspec.Raw = _ABSENT  # Ollama
    parameters: msgspec.Raw = _ABSENT  # TGI
    sampling_params: msgspec.Raw = _ABSENT  # SGLang, vLLM /inference/v1/generate


class _SamplingFields(msgspec.Struct, gc=False):
    max_tokens: msgspec.Raw = _ABSENT
    max_new_tokens: msgspec.Raw = _ABSENT
    num_predict: msgspec.Raw = _ABSENT


_FIELDS = msgspec.json.Decoder(_Fields)
_SAMPLING_FIELDS = msgspec.json.Decoder(_SamplingFields)
_TEXT = msgspec.json.Decoder(str)


@dataclass(slots=True, kw_only=True)
class RequestBody:
    """What is known of a request from its body.

    Attributes:
        model: Name of the model asked for; None when it is missing, not text, empty, longer than `MAX_MODEL_CHARS` or
            not printable.
        prompt: None when no known form of a prompt was found.
        stream: Whether the answer comes in pieces.
        max_output_tokens: The longest answer the client wants, ≥ 0; None when it does not say.
        opaque: The body could not be inspected (compressed, a form without a model in reach, another format than JSON),
            so that a missing model says nothing about the request.
    """

    model: str | None = None
    prompt: Prompt | None = None
    stream: bool = False
    max_output_tokens: int | None = None
    opaque: bool = False

    @property
    def prompt_tokens(self) -> int | None:
        """About how long the prompt is, ≥ 0 (`Prompt.estimated_tokens`); None when no prompt was found."""
        return None if self.prompt is None else self.prompt.estimated_tokens()


def read_request_body(
    path: str, content_type: str | None, content_encoding: str | None, body: bytes | bytearray | Sequence[bytes]
) -> RequestBody:
    """Read what a request asks for; never fails, and takes time linear in the size of the body.

    Args:
        path: The request's path; a query is ignored. It decides only what the shape of the body leaves open.
        content_type: Header value, None when absent. JSON is recognised under any type but `multipart/form-data`.
        content_encoding: Header value, None when absent. A compressed body is not looked at.
        body: All of it. `bytes` are not copied, a bytearray is once, pieces are joined once (JSON) or not at all (forms).
    """
    if _compressed(content_encoding):
        return RequestBody(opaque=True)
    if isinstance(body, bytearray):
        body = bytes(body)  # raw pieces of a bytearray would keep its owner from growing it
    if content_type and _form(content_type):
        return _read_form(content_type, [body] if isinstance(body, bytes) else body)
    fields = _fields(body if isinstance(body, bytes) else b"".join(body))
    if fields is None:
        return RequestBody(opaque=content_type is not None and "json" not in content_type.lower())
    if "?" in path:
        path = path.partition("?")[0]
    return RequestBody(
        model=None if fields.model is _ABSENT else _model_name(fields.model),
        prompt=_prompt(path, fields),
        stream=path.endswith(_STREAMS_BY_DEFAULT) if fields.stream is _ABSENT else fields.stream == _TRUE,
        max_output_tokens=_max_output_tokens(fields),
    )


def may_be_json(content_type: str | None, content_encoding: str | None) -> bool:
    """Whether a body with these headers is read as JSON; arguments as of `read_request_body`."""
    return not _compressed(content_encoding) and not (content_type and _form(content_type))


def _compressed(content_encoding: str | None) -> bool:
    return content_encoding is not None and content_encoding.strip().lower() not in ("", "identity")


def _form(content_type: str) -> bool:
    return content_type[:20].strip().lower().startswith("multipart/")


def _fields(body: bytes) -> _Fields | None:
    """The members of a JSON object; None when the body is something else."""
    try:
        return _FIELDS.decode(memoryview(body)[3:] if body.startswith(_UTF8_BOM) else body)
    except (msgspec.ValidationError, RecursionError):  # no object; nested deeper than any server reads
        return None
    except msgspec.DecodeError:
        if len(body) > MAX_LENIENT_BODY_BYTES:
            return None
    try:
        return _FIELDS.decode(_strict_json(body))
    except (ValueError, RecursionError):
        return None


def _strict_json(body: bytes) -> bytes:
    """JSON as Python's reader takes it, and with it most model servers: lone surrogates, NaN, UTF-16, UTF-32.

    Raises:
        ValueError: It is not even that.
        RecursionError: Nested too deeply.
    """
    return json.dumps(json.loads(body, parse_constant=_null), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _null(_constant: str) -> None:
    """Stands for NaN and the infinities."""


def _read_form(content_type: str, body: Sequence[bytes]) -> RequestBody:
    fields = form_fields(content_type, body)
    model = printable_name(fields.get("model", b"").decode("utf-8", "replace"))
    return RequestBody(model=model, stream=fields.get("stream", b"").lower() == b"true", opaque=model is None)


def _model_name(raw: msgspec.Raw) -> str | None:
    if len(raw) > _MAX_MODEL_JSON_BYTES:
        return None
    try:
        return printable_name(_TEXT.decode(raw))
    except msgspec.DecodeError:
        return None


def printable_name(name: str) -> str | None:
    """The name if it can be one; what is not printable includes control characters and lone surrogates."""
    return name if 0 < len(name) <= MAX_MODEL_CHARS and name.isprintable() else None


def _prompt(path: str, fields: _Fields) -> Prompt | None:
    candidates = [
        raw
        for raw in (
            fields.messages,
            fields.prompt,
            fields.input,
            fields.items,
            fields.inputs,
            fields.text,
            fields.input_ids,
            fields.token_ids,
        )
        if raw is not _ABSENT and memoryview(raw)[0] in b'"['
    ]
    if not candidates:
        return None
    prompt = candidates[0]
    if len(candidates) > 1:
        named: msgspec.Raw = getattr(fields, _prompt_field(path.rstrip("/")), prompt)
        if any(named is raw for raw in candidates):
            prompt = named
    before = [raw for raw in (fields.tools, fields.system, fields.instructions) if raw is not _ABSENT]
    return Prompt(pieces=(*before, prompt), cache_salt=None if fields.cache_salt is _ABSENT else fields.cache_salt)


def _prompt_field(path: str) -> str:
    """The member in which this path's requests carry the prompt; empty when the path is not known."""
    return next((field for suffix, field in _PROMPT_FIELD_OF_PATH if path.endswith(suffix)), "")


def _max_output_tokens(fields: _Fields) -> int | None:
    for raw in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if raw is not _ABSENT:
            return _count(raw)
    for nested in (fields.sampling_params, fields.options, fields.parameters):
        if nested is not _ABSENT and memoryview(nested)[0] == 0x7B:  # {
            sampling = _SAMPLING_FIELDS.decode(nested)
            for raw in (sampling.max_new_tokens, sampling.max_tokens, sampling.num_predict):
                if raw is not _ABSENT:
                    return _count(raw)
    return None


def _count(raw: msgspec.Raw) -> int | None:
    """A whole number ≥ 0 of at most ten digits; None for anything else, such as Ollama's -1 for "no limit"."""
    if len(raw) > _MAX_COUNT_DIGITS:
        return None
    digits = bytes(raw)
    return int(digits) if digits.isdigit() else None
