"""The kinds of plugins a scheduling profile is made of. Plugins decide on lists; they do no I/O and know no other plugin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from epp.pool.endpoint import Endpoint
from epp.scheduling.request import InferenceRequest


@dataclass(slots=True, kw_only=True)
class Moment:
    """When a pick is made.

    Attributes:
        now_s: Monotonic.
        picks_total: Picks of the pool so far.
    """

    now_s: float
    picks_total: int


class Filter(Protocol):
    """Takes candidates away."""

    @property
    def name(self) -> str: ...

    def keep(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[Endpoint]:
        """The candidates that may be picked, in the same order; the same object when nothing is taken away."""
        ...


class Scorer(Protocol):
    """Rates candidates."""

    @property
    def name(self) -> str: ...

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        """One number from 0.0 (worst) to 1.0 (best) for each candidate, in the same order."""
        ...


class Picker(Protocol):
    """Chooses by the weighted sum of the scores."""

    @property
    def name(self) -> str: ...

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> tuple[Endpoint, ...]:
        """At least one candidate, best first, without repeats. There is at least one candidate."""
        ...
