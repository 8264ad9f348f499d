"""Counters of each endpoint: what was sent there, what came back, what its scrapes said. They end with the endpoint."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from epp.telemetry.labels import LabelLimit

NAMED = ("namespace", "port")
SUCCESS, FAILURE = "success", "failure"
SCRAPE_REASONS = 50
"""Reasons of failed scrapes are a short list of words; if one ever carries changing text, this bounds the damage."""


class _EndpointSeries:
    __slots__ = ("attempts", "discarded", "name", "responses", "scrape_errors")

    def __init__(self) -> None:
        self.name = ""
        self.attempts: defaultdict[str, int] = defaultdict(int)
        self.responses: defaultdict[str, int] = defaultdict(int)
        self.scrape_errors: defaultdict[str, int] = defaultdict(int)
        self.discarded: defaultdict[str, int] = defaultdict(int)


class EndpointCounters:
    """Counts by address; a Prometheus collector."""

    def __init__(self, models: LabelLimit) -> None:
        self._models = models
        self._reasons = LabelLimit(limit=SCRAPE_REASONS)
        self._series: dict[str, _EndpointSeries] = {}
        self._failures: defaultdict[str, int] = defaultdict(int)
        self._scrape_errors_total = 0

    def picked(self, name: str, address: str, model: str) -> None:
        """A request is sent to the endpoint."""
        series = self._series.get(address)
        if series is None:
            series = self._series[address] = _EndpointSeries()
        series.name = name
        series.attempts[self._models.label(model)] += 1

    def not_picked(self, model: str) -> None:
        """A request got no endpoint."""
        self._failures[self._models.label(model)] += 1

    def answered(self, address: str, status: int) -> None:
        """The endpoint answered; one that is already gone is not brought back."""
        series = self._series.get(address)
        if series is not None:
            series.responses[f"{status // 100}xx" if 100 <= status < 600 else "invalid"] += 1

    def scrape_failed(self, address: str, reason: str) -> None:
        """A scrape of the endpoint gave nothing."""
        self._scrape_errors_total += 1
        self._series.setdefault(address, _EndpointSeries()).scrape_errors[self._reasons.label(reason)] += 1

    def value_discarded(self, address: str, fault: str) -> None:
        """Something on a page of the endpoint cannot be right and was left out."""
        self._series.setdefault(address, _EndpointSeries()).discarded[self._reasons.label(fault)] += 1

    def gone(self, address: str) -> None:
        """The endpoint is no longer in the pool and nothing runs there."""
        self._series.pop(address, None)

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        yield from self._attempts()
        responses = CounterMetricFamily(
            "epp_endpoint_responses_total", "Responses of an endpoint, by class of status.", labels=("endpoint", "code")
        )
        errors = CounterMetricFamily(
            "epp_scrape_errors_total", "Scrapes that gave nothing, by reason.", labels=("endpoint", "reason")
        )
        discarded = CounterMetricFamily(
            "epp_scrape_values_discarded_total",
            "Values on metrics pages that cannot be right and were left out, by fault.",
            labels=("endpoint", "fault"),
        )
        for address, series in list(self._series.items()):
            for fault, count in series.discarded.items():
                discarded.add_metric((address, fault), count)
            for code, count in series.responses.items():
                responses.add_metric((address, code), count)
            for reason, count in series.scrape_errors.items():
                errors.add_metric((address, reason), count)
        yield from (responses, errors, discarded)
        for prefix in ("llm_d_inference_scheduler", "llm_d_epp"):
            polls = CounterMetricFamily(
                f"{prefix}_datalayer_poll_errors_total",
                "Scrapes that gave nothing, over all endpoints.",
                labels=("source_type",),
            )
            polls.add_metric(("metrics-data-source",), self._scrape_errors_total)
            yield polls

    def _attempts(self) -> Iterator[Metric]:
        sentence = "Decisions, by whether an endpoint was found and which."
        labels = ("status", "target_model_name")
        legacy = CounterMetricFamily(
            "inference_extension_scheduler_attempts_total", sentence, labels=(*labels, "pod_name", *NAMED)
        )
        current = CounterMetricFamily("llm_d_epp_scheduler_attempts_total", sentence, labels=(*labels, "endpoint_name", *NAMED))
        # An endpoint of one name may have been at several addresses; its series is one.
        successes: Counter[tuple[str, ...]] = Counter()
        for address, series in self._series.items():
            for model, count in series.attempts.items():
                successes[SUCCESS, model, series.name, "", address.rpartition(":")[2]] += count
        for values, count in successes.items():
            legacy.add_metric(values, count)
            current.add_metric(values, count)
        for model, count in self._failures.items():
            legacy.add_metric((FAILURE, model, "", "", ""), count)
            current.add_metric((FAILURE, model, "", "", ""), count)
        yield from (legacy, current)
