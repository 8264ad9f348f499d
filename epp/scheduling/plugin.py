"""The kinds of plugins a scheduling profile is made of. Plugins decide on lists; they do no I/O and know no other plugin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from epp.pool.endpoint import Endpoint
from epp.scheduling.request import InferenceRequest


@dataclass(slots=True, kw_only=True)
class Moment:
    """When a pick is made, and what it is to find out besides.

    Attributes:
        now_s: Monotonic.
        picks_total: Picks of the pool so far.
        probe: An endpoint that goes first whatever the scores say, to see whether it is well again; a filter names it.
    """

    now_s: float
    picks_total: int
    probe: Endpoint | None = None


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
    """Chooses by the weighted sum of the scores.

    Attributes:
        max_endpoints: How many it names at most, by configuration; None leaves that to the request.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_endpoints(self) -> int | None: ...

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float], count: int) -> tuple[Endpoint, ...]:
        """The best `count` candidates (≥ 1), or all where there are fewer, best first. There is at least one candidate."""
        ...
