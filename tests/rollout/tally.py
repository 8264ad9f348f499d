"""What became of the requests."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """How a request ended, as its client sees it."""

    WHOLE = "whole"
    """An answer with all its tokens and its end mark."""
    LOST = "lost"
    """No answer: an error status, a refused or broken connection, or an answer without a token."""
    CUT = "cut"
    """An answer that had begun and is not whole."""


@dataclass(slots=True)
class Tally:
    """Counts of endings.

    Attributes:
        endings: How often each came.
        faults: What was seen, of those that are not whole.
    """

    endings: Counter[Ending] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, ending: Ending, seen: str) -> None:
        """Count a request."""
        self.endings[ending] += 1
        if ending is not Ending.WHOLE:
            self.faults[f"{ending.value}: {seen}"] += 1

    @property
    def whole(self) -> int:
        return self.endings[Ending.WHOLE]

    @property
    def lost(self) -> int:
        return self.endings[Ending.LOST]

    @property
    def cut(self) -> int:
        return self.endings[Ending.CUT]

    @property
    def failed(self) -> int:
        """Lost or cut."""
        return self.lost + self.cut

    @property
    def sent(self) -> int:
        """All that have ended."""
        return self.endings.total()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.endings + other.endings, self.faults + other.faults)

    def __str__(self) -> str:
        faults = "".join(f"; {count} × {fault}" for fault, count in self.faults.most_common())
        return f"{self.sent} sent, {self.whole} whole, {self.lost} lost, {self.cut} cut{faults}"
