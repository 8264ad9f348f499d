"""Prompts as tokens and answers as text, without a tokenizer: a token is four characters."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

CHARS_PER_TOKEN = 4

_WORDS = (
    "the", "sun", "can", "see", "old", "man", "who", "ran", "and", "sat", "for", "one", "day", "but", "his", "dog",
    "did", "not", "eat", "any", "pie", "nor", "ham", "yet", "her", "cat", "had", "two", "red", "hat", "box", "lid",
    "now", "all", "the", "men", "say", "how", "big", "sea", "air", "ice", "fog", "dew", "sky", "oak", "elm", "ivy",
    "owl", "fox", "hen", "cow", "bee", "ant", "key", "map", "pen", "ink", "cup", "jug", "bed", "rug", "jam", "oil",
)  # fmt: skip
TOKENS = tuple(word + " " for word in _WORDS)
"""The vocabulary of answers; each token is four characters that need no escaping in JSON."""


def count_tokens(text: str) -> int:
    """Tokens of a text; at least one, since every prompt starts with a mark."""
    return max(1, -(-len(text) // CHARS_PER_TOKEN))


def block_hashes(text: str, block_tokens: int, *, salt: str) -> tuple[int, ...]:
    """A number for each full block of `text`, which also depends on all before it and on `salt` (model, adapter).

    They compare within one process only.
    """
    width = block_tokens * CHARS_PER_TOKEN
    hashes = []
    parent = hash(salt)
    for start in range(0, len(text) - width + 1, width):
        parent = hash((parent, text[start : start + width]))
        hashes.append(parent)
    return tuple(hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """What a request says about the length of its answer.

    Attributes:
        max_tokens: Upper bound, or None.
        min_tokens: Lower bound.
        ignore_eos: Go on to `max_tokens` in any case.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer before it is given.

    Attributes:
        tokens: Its text in tokens of four characters; the joined text is the answer.
        finish_reason: `stop`, or `length` when the request's limit ended it.
    """

    tokens: Sequence[str]
    finish_reason: str

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.tokens)


class AnswerWriter:
    """Makes up answers: the same for the same seed, prompt and choice, whatever came before.

    Attributes:
        mean_tokens: Mean length of an answer that nothing limits; lengths are spread evenly from half to one and a half.
    """

    def __init__(self, *, seed: int, mean_tokens: int) -> None:
        self._seed = seed
        self.mean_tokens = mean_tokens

    def write(self, prompt: str, limits: AnswerLimits, *, choice: int, request_seed: int) -> Answer:
        """The answer to `prompt`; `choice` counts the alternatives that one request asked for."""
        digest = zlib.crc32(prompt.encode("utf-8", "surrogatepass"), self._seed & 0xFFFFFFFF)
        source = random.Random(f"{self._seed}:{digest}:{len(prompt)}:{request_seed}:{choice}")
        natural = source.randint(max(1, self.mean_tokens // 2), max(1, self.mean_tokens * 3 // 2))
        length, reason = max(natural, limits.min_tokens), "stop"
        if limits.max_tokens is not None and (limits.ignore_eos or length >= limits.max_tokens):
            length, reason = limits.max_tokens, "length"
        return Answer(tokens=source.choices(TOKENS, k=length), finish_reason=reason)

    def vector(self, text: str, dimensions: int) -> list[float]:
        """An embedding of unit length."""
        source = random.Random(f"{self._seed}:{zlib.crc32(text.encode('utf-8', 'surrogatepass'))}")
        raw = [source.gauss(0.0, 1.0) for _ in range(dimensions)]
        norm = sum(value * value for value in raw) ** 0.5
        return [value / norm for value in raw]
