"""The prompt of a request, as far as the KV cache of a model server is concerned."""

import re
from dataclasses import dataclass

import msgspec

BYTES_PER_TOKEN = 4
"""As in the reference pickers: a quarter of a token per character."""
MEDIA_TOKENS = 576
"""Rough cost of images and sound in a prompt: 24 × 24 patches, as of one image in CLIP ViT-L/14 at 336 pixels."""
MEDIA_SAMPLES = 16
MEDIA_SAMPLE_BYTES = 128
ID_SAMPLE_BYTES = 4096

_MAX_CLOSING_BYTES = 64
_WHITESPACE = b" \t\r\n"

_OPENING = re.compile(rb'[ \t\r\n\[]*"?')
_TOKEN_IDS = re.compile(rb"[ \t\r\n]*\[[ \t\r\n\[]*-?[0-9]")
# With the backslash that some writers put before a slash; letters of both cases and digits, unlike "aaaa…".
_BASE64 = re.compile(rb"(?=[A-Za-z0-9+/=\\]+\Z)(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])(?=[^0-9]*[0-9]).+")


@dataclass(slots=True, kw_only=True)
class Prompt:
    """What decides which part of a KV cache a request can use again.

    The pieces are views of the body, so a prompt keeps the whole body in memory: let go of it when the pick is made.

    Attributes:
        pieces: Raw JSON in the order in which chat templates render it: tools, system text, then messages or prompt.
        cache_salt: Raw JSON of the salt that keeps the caches of different users apart (vLLM); None without one.
    """

    pieces: tuple[msgspec.Raw, ...]
    cache_salt: msgspec.Raw | None = None

    def prefix(self, limit_bytes: int) -> bytes:
        """The beginning of the prompt in a form that is equal for equal prompts, for hashing block by block.

        Token ids are `5,6,7` however they were spaced, and in a list of one list as in a plain list. Text stays as the
        client escaped it. A conversation that goes on has the earlier one as its prefix. Of a batch the members follow
        one another, so what is compared first is the first. Copies at most four times the limit.

        Args:
            limit_bytes: The longest prefix to give, ≥ 0; may come out shorter when token ids are spaced widely.
        """
        key = bytearray()
        if self.cache_salt is not None:
            key += self.cache_salt
            key += b"\0"
        for piece in self.pieces:
            if len(key) >= limit_bytes:
                break
            key += _canonical(piece, limit_bytes - len(key))
            key += b"\0"
        return bytes(key[:limit_bytes])

    def estimated_tokens(self) -> int:
        """About how many tokens the prompt has, ≥ 0: the number of ids, or a quarter of the bytes that are no image or
        sound. Takes constant time (up to 10 µs), and is exact for up to `ID_SAMPLE_BYTES` of token ids.
        """
        return sum(map(_estimated_tokens, self.pieces))


def _canonical(piece: msgspec.Raw, limit_bytes: int) -> bytes:
    """The piece without the brackets and the quote around it, and without the spaces between token ids."""
    view = memoryview(piece)
    start = _OPENING.match(view)
    assert start is not None, "the pattern matches the empty text"
    at = start.end()
    if _TOKEN_IDS.match(view, 0, ID_SAMPLE_BYTES):
        return bytes(view[at : at + 4 * limit_bytes]).translate(None, _WHITESPACE).rstrip(b"]")[:limit_bytes]
    ending = bytes(view[-_MAX_CLOSING_BYTES:])
    closing_bytes = len(ending) - len(ending.rstrip(b"] \t\r\n").removesuffix(b'"'))
    return bytes(view[at : min(at + limit_bytes, len(view) - closing_bytes)])


def _estimated_tokens(piece: msgspec.Raw) -> int:
    """In constant time: what is long is judged by samples."""
    view = memoryview(piece)
    if _TOKEN_IDS.match(view, 0, ID_SAMPLE_BYTES):
        sample = bytes(view[:ID_SAMPLE_BYTES])
        return round((sample.count(b",") + 1) * len(view) / len(sample))
    media_samples = 0
    if len(view) > MEDIA_SAMPLES * MEDIA_SAMPLE_BYTES:
        step = len(view) // MEDIA_SAMPLES
        for at in range(step // 2, len(view), step):
            media_samples += _BASE64.fullmatch(view, at, at + MEDIA_SAMPLE_BYTES) is not None
    text_bytes = len(view) * (MEDIA_SAMPLES - media_samples) // MEDIA_SAMPLES
    return text_bytes // BYTES_PER_TOKEN + (MEDIA_TOKENS if media_samples else 0)
