"""All counting of the process behind one object, told in the words of those who call it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector

from epp.telemetry.drain_metrics import DrainMetrics
from epp.telemetry.endpoint_metrics import EndpointCounters
from epp.telemetry.labels import LabelLimit
from epp.telemetry.outcome import RequestOutcome
from epp.telemetry.picker_metrics import Build, PickerMetrics
from epp.telemetry.request_metrics import RequestMetrics
from epp.telemetry.rewrite_metrics import RewriteMetrics


class HasAddress(Protocol):
    """What counting needs to know of an endpoint."""

    @property
    def address(self) -> str: ...


class Metrics:
    """Counts for `/metrics`.

    Plain numbers, changed by the event loop's thread only; families are made when the registry is read. Gauges of the pool
    are not here: they are read from the pool itself (`epp.admin.pool_collector`).

    Args:
        registry: Gets the collectors; also the standard `process_*` family (CPU, memory, open files).
        model_names: Models of the configuration, which always keep a label of their own.
    """

    def __init__(self, registry: CollectorRegistry, *, model_names: Iterable[str] = ()) -> None:
        models = LabelLimit(model_names)
        self._requests = RequestMetrics(models)
        self._rewrites = RewriteMetrics(models)
        self._endpoints = EndpointCounters(models)
        self._picker = PickerMetrics()
        self._drains = DrainMetrics()
        for collector in (self._requests, self._rewrites, self._endpoints, self._picker, self._drains):
            registry.register(collector)
        ProcessCollector(registry=registry)

    # ── one request ──

    def request_began(self, outcome: RequestOutcome) -> None:
        """The request is known: model, target model and priority of `outcome` are final from here on."""
        self._requests.began(outcome)

    def request_ended(self, outcome: RequestOutcome) -> None:
        """The request is over, however it ended; call it exactly once, also for one that never began."""
        if outcome.picked_at_s is not None:
            self._picker.processing_s.observe(outcome.picked_at_s - outcome.started_at_s)
        if outcome.endpoint is not None and outcome.status is not None:
            self._endpoints.answered(outcome.endpoint, outcome.status)
            self._picker.responses_cut += outcome.cancelled and outcome.error_code is None
        self._requests.ended(outcome)

    def picked(self, duration_s: float, endpoint_name: str, address: str, model: str) -> None:
        """A decision chose the endpoint `endpoint_name` at `address` for `model` (as the request names it)."""
        self._picker.pick_s.observe(duration_s)
        self._picker.admitted_at_once += 1
        self._endpoints.picked(endpoint_name, address, model)

    def not_picked(self, duration_s: float, code: str, model: str) -> None:
        """A decision ended without an endpoint; `code` is that of the answer (`PickError.code`)."""
        self._picker.pick_s.observe(duration_s)
        self._picker.pick_errors[code] += 1
        self._endpoints.not_picked(model)

    def body_read(self, duration_s: float) -> None:
        """The body of a request was read to its end, `duration_s` after its headers."""
        self._picker.body_read_s.observe(duration_s)

    def body_not_inspected(self, reason: str) -> None:
        """A body was routed by load without a look inside, or could not be changed in the way it came.

        `reason` is one of a few words: `buffers_full`, `opaque`, or `not_rewritten`.
        """
        self._picker.bodies_not_inspected[reason] += 1

    def model_rewritten(self, rewrite_name: str, model: str, target_model: str) -> None:
        """The rules of the object `rewrite_name` gave a request for `model` the model `target_model`; before it began."""
        self._rewrites.decided(rewrite_name, model, target_model)

    def served_elsewhere(self) -> None:
        """Envoy says that another endpoint than the one picked served a request."""
        self._picker.served_mismatches += 1

    # ── scraping ──

    def scrape_ended(self, endpoint: HasAddress, duration_s: float, page_bytes: int) -> None:
        """A scrape gave a page."""
        self._picker.scrape_s.observe(duration_s)
        self._picker.page_bytes.observe(page_bytes)

    def scrape_failed(self, endpoint: HasAddress, reason: str) -> None:
        """A scrape gave nothing; `reason` is one of a few words, such as `timeout` or `refused`."""
        self._endpoints.scrape_failed(endpoint.address, reason)

    def value_discarded(self, endpoint: HasAddress, fault: str) -> None:
        """A value on a page cannot be right and was left out; `fault` is one of a few words, such as `negative`."""
        self._endpoints.value_discarded(endpoint.address, fault)

    def endpoint_gone(self, endpoint: HasAddress) -> None:
        """Forget the endpoint's series: it left the pool and nothing runs there any more."""
        self._endpoints.gone(endpoint.address)

    # ── endpoints that leave rotation ──

    def endpoint_drain_ended(self, last_pick_s: float, last_stream_s: float) -> None:
        """An endpoint that had left rotation is gone or back; both times are since the first sight of it."""
        self._drains.last_pick_s.observe(last_pick_s)
        self._drains.last_stream_s.observe(last_stream_s)

    def endpoint_drain_cut(self) -> None:
        """A request ended without a whole answer on an endpoint that had left rotation."""
        self._drains.cut_requests += 1

    def read_recommended_min_wait_from(self, recommended_s: Callable[[], float | None]) -> None:
        """Ask `recommended_s` at each reading of the metrics how long preStop hooks should wait at least."""
        self._drains.recommended_min_wait_s = recommended_s

    # ── the process ──

    def drain_ended(self, duration_s: float, cut_requests: int) -> None:
        """The picker's own drain is over; `cut_requests` still ran."""
        self._picker.drain_s.observe(duration_s)
        self._picker.drain_cut_requests += cut_requests

    def config_is_valid(self, valid: bool) -> None:
        """The latest configuration or endpoints file can be used, or cannot."""
        self._picker.config_valid = valid

    def describe_build(self, build: Build) -> None:
        """Say what runs here."""
        self._picker.build = build

    def read_buffered_bytes_from(self, held: Callable[[], int]) -> None:
        """Ask `held` at each reading of the metrics for the bytes of bodies that are held then."""
        self._picker.buffered_bytes = held

    def read_wire_limits_from(self, hits: Callable[[], Mapping[str, int]]) -> None:
        """Ask `hits` at each reading of the metrics how often each limit of the gRPC port was hit."""
        self._picker.wire_limits = hits

    def read_peer_failures_from(self, failed: Callable[[], int]) -> None:
        """Ask `failed` at each reading of the metrics how many calls to other replicas had no usable answer."""
        self._picker.peer_failures = failed

    def expect_tls_handshakes(self) -> None:
        """The transport can tell failed handshakes: show their number from now on, starting at 0."""
        if self._picker.tls_handshake_failures is None:
            self._picker.tls_handshake_failures = 0

    def tls_handshake_failed(self) -> None:
        """A connection to the ext_proc port ended in the TLS handshake."""
        self._picker.tls_handshake_failures = (self._picker.tls_handshake_failures or 0) + 1
