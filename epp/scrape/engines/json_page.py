"""JSON pages: decoding, and numbers of any type taken with the same care as those of an exposition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.page import Discarded, PageError
from epp.scrape.engines.quantity import Rule, believe

MOST_JSON_BYTES = 2 << 20
"""Values of any shape are costly (30 ns a byte at worst): longer pages are not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPage:
    """How an engine's JSON page is told from others, and how it is read.

    Attributes:
        is_ours: Whether a decoded page has this engine's shape.
        read: What a page says; raises PageError when it has another shape.
    """

    is_ours: Callable[[Any], bool]
    read: Callable[[bytes, Discarded], EndpointMetrics]


def decode(page: bytes) -> Any:
    """The value that a page holds.

    Raises:
        PageError: It is no JSON, or more than `MOST_JSON_BYTES` of it.
    """
    if len(page) > MOST_JSON_BYTES:
        raise PageError("garbage", f"expected at most {MOST_JSON_BYTES} bytes of JSON, found {len(page)}")
    if not page.strip():
        raise PageError("empty", "the page is empty")
    try:
        return msgspec.json.decode(page)
    except (msgspec.DecodeError, RecursionError):
        raise PageError("garbage", f"expected JSON, found {excerpt(page)}") from None


def excerpt(page: bytes) -> str:
    """The beginning of a page, printable, for an error."""
    return repr(page[:40].decode(errors="replace"))


def number(value: Any, rule: Rule, discarded: Discarded) -> float | None:
    """A JSON value as a number that can be believed; None when it is missing or of another type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return believe(float(value), rule, discarded)
    except OverflowError:
        return believe(float("inf"), rule, discarded)


def total(values: list[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def highest(values: list[float | None]) -> float | None:
    """The highest of what is known; None when nothing is."""
    return max((value for value in values if value is not None), default=None)


def whole(value: float | None) -> int | None:
    """A size as an integer."""
    return None if value is None else int(value)
