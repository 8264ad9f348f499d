"""Counting values into buckets, cheap enough for the path of a request.

`prometheus_client.Histogram.observe` walks its buckets under a lock, and the reference pickers' two generations of names
would need it twice for each number. Here a value is counted once (a bisection and two additions) and the names are
given at collection. Not for use from several threads at once: counting belongs to the event loop's thread.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Distribution:
    """How often values fell into each bucket.

    Attributes:
        bounds: Upper bounds of the buckets, inclusive, ascending, without infinity.
        counts: Values in each bucket, not cumulative; the last one is for those above every bound.
        total: Sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def __bool__(self) -> bool:
        """Whether any value was counted."""
        return any(self.counts)

    @classmethod
    def sum_of(cls, distributions: Sequence["Distribution"]) -> "Distribution":
        """All values of `distributions` (at least one, of equal bounds) together."""
        if len(distributions) == 1:
            return distributions[0]
        together = cls(distributions[0].bounds)
        together.counts = [sum(counts) for counts in zip(*(d.counts for d in distributions), strict=True)]
        together.total = sum(d.total for d in distributions)
        return together


class HistogramName:
    """One name under which distributions are shown.

    Args:
        name: Of the family, with its unit.
        sentence: Help text.
        labels: Names of the labels.
        counted_in: Bounds of the distributions that will be shown.
        shown_in: Bounds to show, each also in `counted_in` (a bucket is cumulative, so bounds can be left out exactly).
    """

    def __init__(
        self,
        name: str,
        sentence: str,
        labels: Sequence[str] = (),
        *,
        counted_in: Sequence[float],
        shown_in: Sequence[float] | None = None,
    ) -> None:
        shown = counted_in if shown_in is None else shown_in
        self.name = name
        self._sentence = sentence
        self._labels = labels
        self._shown = [(str(bound), counted_in.index(bound)) for bound in shown]

    def family(self, rows: Iterable[tuple[Sequence[str], Distribution]]) -> HistogramMetricFamily:
        """The family with one series for each (label values, distribution)."""
        family = HistogramMetricFamily(self.name, self._sentence, labels=self._labels)
        for label_values, distribution in rows:
            cumulative = list(accumulate(distribution.counts))
            buckets = [(le, float(cumulative[index])) for le, index in self._shown]
            buckets.append(("+Inf", float(cumulative[-1])))
            family.add_metric(label_values, buckets, distribution.total)
        return family
