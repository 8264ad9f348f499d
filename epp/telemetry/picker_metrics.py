"""What the picker itself does and costs, over all endpoints and models."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from epp.telemetry import buckets
from epp.telemetry.distribution import Distribution, HistogramName

_PICK = "Time a decision takes, waiting for the body not included."
_PICK_NAMES = (
    HistogramName("epp_pick_duration_seconds", _PICK, counted_in=buckets.PICK_S),
    *(
        HistogramName(
            f"{prefix}_scheduler_e2e_duration_seconds", _PICK, counted_in=buckets.PICK_S, shown_in=buckets.SCHEDULING_S
        )
        for prefix in ("inference_extension", "llm_d_epp")
    ),
)
_BODY_READ = HistogramName(
    "epp_body_read_duration_seconds",
    "From a request's headers to the end of its body, which the client and Envoy decide.",
    counted_in=buckets.BODY_READ_S,
)
_QUEUE = HistogramName(
    "epp_queue_duration_seconds",
    "How long requests waited to be let in before their pick; 0 for those that were let in at once.",
    counted_in=buckets.QUEUE_S,
)
_PROCESSING = HistogramName(
    "llm_d_epp_request_processing_duration_seconds", "From a request's headers to its pick.", counted_in=buckets.PROCESSING_S
)
_SCRAPE = HistogramName("epp_scrape_duration_seconds", "Time a scrape that gave a page takes.", counted_in=buckets.SCRAPE_S)
_PAGE = HistogramName("epp_scrape_page_bytes", "Length of the pages that were scraped.", counted_in=buckets.PAGE_BYTES)
_DRAIN = HistogramName(
    "epp_drain_duration_seconds",
    "From SIGTERM until the picker was idle or --drain-timeout was over.",
    counted_in=buckets.DRAIN_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What runs here.

    Attributes:
        version: Of the distribution.
        python: Version of the interpreter.
        transport: `grpcio` or `socket`.
        commit: Of the source; empty when unknown.
    """

    version: str
    python: str
    transport: str
    commit: str = ""


class PickerMetrics:
    """Counts of the process; a Prometheus collector. What nobody feeds in this process has no family."""

    def __init__(self) -> None:
        self.pick_s = Distribution(buckets.PICK_S)
        self.admitted_at_once = 0
        self.body_read_s = Distribution(buckets.BODY_READ_S)
        self.processing_s = Distribution(buckets.PROCESSING_S)
        self.scrape_s = Distribution(buckets.SCRAPE_S)
        self.page_bytes = Distribution(buckets.PAGE_BYTES)
        self.drain_s = Distribution(buckets.DRAIN_S)
        self.pick_errors: defaultdict[str, int] = defaultdict(int)
        self.bodies_not_inspected: defaultdict[str, int] = defaultdict(int)
        self.served_mismatches = 0
        self.drain_cut_requests = 0
        self.responses_cut = 0
        self.tls_handshake_failures: int | None = None
        self.config_valid = True
        self.build: Build | None = None
        self.buffered_bytes: Callable[[], int] | None = None
        self.wire_limits: Callable[[], Mapping[str, int]] | None = None
        self.peer_failures: Callable[[], int] | None = None

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        for name in _PICK_NAMES:
            yield name.family([((), self.pick_s)])
        yield _QUEUE.family([((), _all_at_once(self.admitted_at_once))])
        yield GaugeMetricFamily("epp_prefix_index_bytes", "Memory of the prefix index; 0 while no scorer keeps one.", 0)
        yield _BODY_READ.family([((), self.body_read_s)])
        yield _PROCESSING.family([((), self.processing_s)])
        yield _SCRAPE.family([((), self.scrape_s)])
        yield _PAGE.family([((), self.page_bytes)])
        yield _DRAIN.family([((), self.drain_s)])
        yield _labelled(
            "epp_pick_errors_total",
            "Decisions that ended without an endpoint, by code of the answer.",
            "code",
            self.pick_errors,
        )
        yield _labelled(
            "epp_bodies_not_inspected_total",
            "Bodies routed by load without a look inside, or that a rewrite of models could not change, by reason.",
            "reason",
            self.bodies_not_inspected,
        )
        yield CounterMetricFamily(
            "epp_served_mismatch_total", "Requests that another endpoint served than the one picked.", self.served_mismatches
        )
        yield CounterMetricFamily(
            "epp_drain_cut_requests_total", "Requests that still ran when --drain-timeout was over.", self.drain_cut_requests
        )
        yield CounterMetricFamily(
            "epp_responses_cut_total",
            "Responses that began and did not end: the client left, or the model server broke off.",
            self.responses_cut,
        )
        yield GaugeMetricFamily(
            "epp_config_valid",
            "Whether the latest configuration could be used; at 0 the last good one is in use.",
            int(self.config_valid),
        )
        if self.buffered_bytes is not None:
            yield GaugeMetricFamily("epp_buffered_bytes", "Bytes of bodies that are held now.", self.buffered_bytes())
        if self.tls_handshake_failures is not None:
            yield CounterMetricFamily(
                "epp_tls_handshake_failures_total",
                "Connections to the ext_proc port that ended in the TLS handshake.",
                self.tls_handshake_failures,
            )
        if self.wire_limits is not None:
            yield _labelled(
                "epp_wire_limits_total", "Limits of the gRPC port that peers hit, by limit.", "limit", self.wire_limits()
            )
        if self.peer_failures is not None:
            yield CounterMetricFamily(
                "epp_peer_call_failures_total", "Calls to other replicas that had no usable answer.", self.peer_failures()
            )
        if self.build is not None:
            yield from _build(self.build)


def _all_at_once(requests: int) -> Distribution:
    distribution = Distribution(buckets.QUEUE_S)
    distribution.counts[0] = requests
    return distribution


def _labelled(name: str, sentence: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, sentence, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _build(build: Build) -> Iterator[Metric]:
    own = GaugeMetricFamily("epp_build_info", "What runs here.", labels=("version", "python", "transport"))
    own.add_metric((build.version, build.python, build.transport), 1)
    yield own
    for name in ("inference_extension_info", "llm_d_epp_info"):
        reference = GaugeMetricFamily(name, "What runs here.", labels=("commit", "build_ref"))
        reference.add_metric((build.commit, build.version), 1)
        yield reference
