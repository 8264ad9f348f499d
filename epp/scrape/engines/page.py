"""What every page has in common: where it is, how it can be unreadable, how a number on it can be wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum

from epp.errors import EppError


class PageFormat(Enum):
    """How a page is written."""

    EXPOSITION = "exposition"
    """Prometheus text or OpenMetrics."""
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place where an engine says how loaded it is.

    Attributes:
        path: Path with its query, as sent.
        port: Port when the engine has its own for this; None for the port it serves on.
        min_interval_s: Reading more often than this tells nothing new.
        destructive: Reading takes the content away from other readers, so it is only used when nothing else is there.
    """

    path: str
    port: int | None = None
    format: PageFormat = PageFormat.EXPOSITION
    min_interval_s: float = 0.0
    destructive: bool = False


class PageError(EppError):
    """A page cannot be read at all; the text is one short sentence.

    Attributes:
        reason: Short slug for a metric label: `garbage` (not what this engine's page looks like), `empty`, or
            `unchanged` (see `PageUnchangedError`).
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class PageUnchangedError(PageError):
    """The page has nothing new since it was last read: what the last page said still holds, and it is no failure.

    The last metrics stay, with the own count of that time (a server that has not stepped since has not counted anything
    since); only their age begins anew, because the server has just answered.
    """

    def __init__(self) -> None:
        super().__init__("unchanged", "nothing new since the last read")


class Fault(StrEnum):
    """Why something on a page was left out; the words are metric labels."""

    BAD_LINE = "bad_line"
    """A wanted line is cut off or not of the grammar."""
    NOT_A_NUMBER = "not_a_number"
    """NaN or an infinity."""
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out_of_range"
    """A ratio above 1, or a count that no server can have."""
    CONTRADICTION = "contradiction"
    """Two series on the page cannot both be right."""


Discarded = Callable[[Fault], None]
"""Called once for each thing on a page that was left out or corrected."""


def unseen(_fault: Fault) -> None:
    """Where nobody asks what was left out."""
