"""A scheduling profile: filters take candidates away, scorers rate the rest, a picker chooses."""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Filter, Moment, Picker, Scorer
from epp.scheduling.request import InferenceRequest


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and how much its word counts (≥ 0)."""

    scorer: Scorer
    weight: float = 1.0


@dataclass(slots=True)
class Schedule:
    """What a profile decided, and why.

    Attributes:
        chosen: Best first, behind the probe if there is one.
        candidates: Those that were scored.
        scores: One list a scorer, in the order of the profile, each in the order of `candidates`.
        totals: Weighted sums, in the order of `candidates`.
        filtered: (endpoint, name of the filter) for each one that was taken away.
        probe: The chosen one, where that was to see whether it is well again.
    """

    chosen: tuple[Endpoint, ...]
    candidates: Sequence[Endpoint]
    scores: Sequence[Sequence[float]]
    totals: Sequence[float]
    filtered: Sequence[tuple[Endpoint, str]]
    probe: Endpoint | None = None


class SchedulingProfile:
    """An ordered set of plugins."""

    def __init__(self, name: str, filters: Sequence[Filter], scorers: Sequence[WeightedScorer], picker: Picker) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self.scorer_names = [weighted.scorer.name for weighted in self.scorers]
        """In the order of `Schedule.scores`."""

    def run(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Schedule:
        """Decide. `chosen` is empty when the filters left nothing."""
        filtered: list[tuple[Endpoint, str]] = []
        for plugin in self.filters:
            kept = plugin.keep(request, candidates, moment)
            if kept is not candidates:
                left = set(map(id, kept))
                filtered += [(e, plugin.name) for e in candidates if id(e) not in left and e is not moment.probe]
                candidates = kept
        if not candidates:
            return Schedule((), (), (), (), filtered)
        scores = [weighted.scorer.score(request, candidates, moment) for weighted in self.scorers]
        if len(scores) == 1:
            weight = self.scorers[0].weight
            totals: Sequence[float] = scores[0] if weight == 1.0 else [score * weight for score in scores[0]]
        else:
            totals = [0.0] * len(candidates)
            for weighted, row in zip(self.scorers, scores, strict=True):
                totals = [total + score * weighted.weight for total, score in zip(totals, row, strict=True)]
        count = self.picker.max_endpoints or request.endpoints_named
        probe = moment.probe
        if probe is None:
            return Schedule(self.picker.choose(candidates, totals, count), candidates, scores, totals, filtered)
        others = self.picker.choose(candidates, totals, count - 1) if count > 1 else ()
        return Schedule((probe, *others), candidates, scores, totals, filtered, probe)
