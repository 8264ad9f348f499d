"""Metrics pages in the Prometheus text format, in the accents of the engines."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from epp.sim.job import JobTimes

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_BOUND = "\0"
"""Stands for a bucket's bound while its line is made."""


def labels(**values: str) -> str:
    """Labels as they stand between the braces, sorted by name as prometheus_client does."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(values.items()))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def python_number(value: float) -> str:
    """A number as Python's client library writes it: `3.0`, `1.7e+09`, `NaN`."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def plain_number(value: float) -> str:
    """A number as Rust and C++ clients write it: `3`, `0.31`."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def six_digits(value: float) -> str:
    """A number as a C++ stream writes a double: six significant digits, `9.21477e+06`."""
    return f"{value:.6g}"


class Style(Enum):
    """How a client library lays out histograms and what it adds."""

    PYTHON = "python"
    """Buckets, count, sum, and a gauge with the time of creation."""
    PYTHON_MULTIPROCESS = "python, several processes"
    """Sum, buckets, count."""
    OTHER = "other"
    """Buckets, sum, count."""


class Histogram:
    """Observations in buckets.

    Attributes:
        bounds: Upper bounds of the buckets, growing, without +Inf.
        counts: Observations in each bucket alone, the last one above every bound.
        total: Sum of all observations.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFamily:
    """A histogram of finished requests.

    Attributes:
        name: Without `_bucket` and the like.
        text: HELP.
        bounds: Upper bounds of the buckets.
        value: What to observe of a finished request.
        weight: How often; None is once.
        labels: Of its one series.
    """

    name: str
    text: str
    bounds: Sequence[float]
    value: Callable[[JobTimes], float]
    weight: Callable[[JobTimes], int] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class HistogramBoard:
    """All histograms of one engine."""

    def __init__(self, families: Iterable[HistogramFamily]) -> None:
        self.histograms = [(family, Histogram(family.bounds)) for family in families]

    def observe(self, times: JobTimes) -> None:
        """Count one finished request everywhere."""
        for family, histogram in self.histograms:
            weight = 1 if family.weight is None else family.weight(times)
            if weight > 0:
                histogram.observe(family.value(times), weight)


Samples = Iterable[tuple[str, float]]


class PageWriter:
    """Collects the lines of one page."""

    def __init__(
        self,
        *,
        style: Style,
        number: Callable[[float], str] = python_number,
        created_s: float = 0.0,
        blank_lines: bool = False,
    ) -> None:
        self._style = style
        self._number = number
        self._created = number(created_s)
        self._blank_lines = blank_lines
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str | None, samples: Samples) -> None:
        """A gauge, counter or summary; `samples` are (labels between the braces, value)."""
        samples = list(samples)
        self._head(name, kind, text)
        self._samples(name, samples)
        if kind == "counter" and self._style is Style.PYTHON:
            created = name.removesuffix("_total") + "_created"
            self._head(created, "gauge", text)
            self._lines += [f"{_series(created, body)} {self._created}" for body, _ in samples]
        self._end()

    def gauge(self, name: str, text: str, value: float, body: str = "") -> None:
        """A gauge with one series."""
        self.family(name, "gauge", text, [(body, value)])

    def counter(self, name: str, text: str, value: float, body: str = "") -> None:
        """A counter with one series."""
        self.family(name, "counter", text, [(body, value)])

    def histogram(self, name: str, text: str, histogram: Histogram, values: Mapping[str, str]) -> None:
        """A histogram with one series."""
        self._head(name, "histogram", text)
        body = labels(**values)
        before, after = f"{name}_bucket{{{labels(**values, le=_BOUND)}}} ".split(_BOUND)
        running = 0
        buckets = []
        for bound, found in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            running += found
            le = "+Inf" if bound == float("inf") else self._number(bound)
            buckets.append(f"{before}{le}{after}{self._number(running)}")
        total = f"{_series(name + '_sum', body)} {self._number(histogram.total)}"
        count = f"{_series(name + '_count', body)} {self._number(running)}"
        if self._style is Style.PYTHON:
            self._lines += [*buckets, count, total]
            self._head(name + "_created", "gauge", text)
            self._lines.append(f"{_series(name + '_created', body)} {self._created}")
        elif self._style is Style.PYTHON_MULTIPROCESS:
            self._lines += [total, *buckets, count]
        else:
            self._lines += [*buckets, total, count]
        self._end()

    def board(self, board: HistogramBoard) -> None:
        """Every histogram of finished requests."""
        for family, histogram in board.histograms:
            self.histogram(family.name, family.text, histogram, family.labels)

    def metric(self, metric: Metric) -> None:
        """A family of prometheus_client's own collectors."""
        name = metric.name + "_total" if metric.type == "counter" else metric.name
        self._head(name, metric.type, metric.documentation)
        for sample in metric.samples:
            self._lines.append(f"{_series(sample.name, labels(**sample.labels))} {self._number(sample.value)}")
        self._end()

    def page(self) -> bytes:
        """The whole page."""
        return ("\n".join(self._lines) + "\n").encode() if self._lines else b""

    def _head(self, name: str, kind: str, text: str | None) -> None:
        if text is not None:
            self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def _samples(self, name: str, samples: Samples) -> None:
        self._lines += [f"{_series(name, body)} {self._number(value)}" for body, value in samples]

    def _end(self) -> None:
        if self._blank_lines:
            self._lines.append("")


def _series(name: str, body: str) -> str:
    return f"{name}{{{body}}}" if body else name
