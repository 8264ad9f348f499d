"""One endpoint: what discovery says of it, what its last scrape said, and what this process has handed out to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from typing import NewType

from epp.errors import ConfigError
from epp.pool.drain_marks import DrainMark
from epp.pool.drain_records import DrainRecord
from epp.pool.health import EndpointHealth
from epp.pool.load import LoadEstimate, estimate_load, estimated_cost
from epp.pool.metrics import EndpointMetrics

EndpointAddress = NewType("EndpointAddress", str)
"""`ip:port`, IPv6 in brackets: `10.0.0.1:8000`, `[fd00::7]:8000`. The form that goes on the wire."""

NEVER_S = float("-inf")
BUSY_STATUSES = frozenset({429, 503, 529})
"""What model servers answer when they are full (vLLM, SGLang, TGI, Ollama and NIM, in their versions)."""


def endpoint_address(ip: str, port: int) -> EndpointAddress:
    """The address of `ip` (IPv6 with or without brackets) and `port`, normalised so that equal addresses are equal text.

    Raises:
        ConfigError: `ip` is no IPv4 or IPv6 address (one with a zone means nothing on another machine), or `port` is not
            from 1 to 65535.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"port: expected a number from 1 to 65535, found {port}")
    try:
        address = ip_address(ip[1:-1] if ip.startswith("[") and ip.endswith("]") else ip)
    except ValueError:
        address = None
    if address is None or "%" in ip:
        raise ConfigError(f"address: expected an IPv4 or IPv6 address, found {ip!r}")
    return EndpointAddress(f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTarget:
    """Where an endpoint's metrics are read; None means what the engine uses by default (the port: the serving port).

    Attributes:
        scheme: `http` or `https`.
    """

    port: int | None = None
    path: str | None = None
    scheme: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """What discovery says of one endpoint.

    Attributes:
        address: Where it serves.
        name: For people; unique in the pool.
        incarnation: Which life of the process behind the address this is (pod UID and restart count); another one
            at the same address is another endpoint, which inherits nothing.
        engine: Name of the engine if the user named it; None to recognise it from the metrics page.
        weight: Relative capacity, > 0.
        draining: Gets nothing new, finishes what it has.
        draining_reason: Why, in one sentence; None when the source only says that it drains.
        not_ready_reason: Why it must not be picked for other reasons than draining; None when it is ready.
    """

    address: EndpointAddress
    name: str
    incarnation: str = ""
    engine: str | None = None
    metrics: MetricsTarget = field(default_factory=MetricsTarget)
    labels: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0
    draining: bool = False
    draining_reason: str | None = None
    not_ready_reason: str | None = None


class EndpointState(Enum):
    """Whether new picks may go to an endpoint."""

    READY = "ready"
    DRAINING = "draining"
    UNREADY = "unready"


class Endpoint:
    """The record of one incarnation of one endpoint; `PoolState` owns it and is alone in changing membership.

    Counting: `in_flight_requests` goes up in the same step as the choice and down exactly once a request
    (`epp.endpoint_picker.Pick`). The load is what the last scrape said, corrected by how far the own count moved since
    that scrape *began*, and it is never below the own count, so a scrape cannot erase what is outstanding.

    Attributes:
        spec: What discovery said last.
        state: Whether new picks may go here; `reason` says why not, in one sentence.
        mark: What a drain call left here; None without one.
        drain: Its record while it is out of rotation; None otherwise.
        in_flight_requests: Picked here and not finished, ≥ 0.
        metrics: The last scrape that could be read; None before the first.
        scraped_at_s: When that scrape began, monotonic; None before the first.
        scrape_error: What was wrong with the latest scrape, in one sentence; None when it was fine.
        scrape_interval_s: Pause between scrapes as adapted to this endpoint; None when it is not scraped.
        engine: The engine in use: forced by the spec or recognised; None while unknown.
        known_at_s: `scraped_at_s`, or minus infinity: ages without a case for None.
        ramps_up_from_s: When it joined a pool that was already serving, came back, or failed or turned away a request;
            minus infinity for the others.
        cost: `(load.cost_requests + 1) / weight`: what picks compare, with the next request already there, so that the
            weight tells among idle endpoints too (as in Envoy's weighted least request). Kept up to date by every method
            that changes what it depends on.
        health: What its own answers told.
        unanswered_requests: Picked here, not ended, and no response header seen yet.
        progress_events: Counts every sign of life in answers; only its change matters.
    """

    __slots__ = (
        "cost",
        "drain",
        "engine",
        "health",
        "in_flight_at_scrape",
        "in_flight_requests",
        "known_at_s",
        "mark",
        "metrics",
        "progress_events",
        "ramps_up_from_s",
        "reason",
        "scrape_error",
        "scrape_interval_s",
        "scraped_at_s",
        "spec",
        "state",
        "unanswered_requests",
    )

    def __init__(self, spec: EndpointSpec) -> None:
        self.spec = spec
        self.state = EndpointState.UNREADY
        self.reason: str | None = None
        self.mark: DrainMark | None = None
        self.drain: DrainRecord | None = None
        self.in_flight_requests = 0
        self.in_flight_at_scrape = 0
        self.metrics: EndpointMetrics | None = None
        self.scraped_at_s: float | None = None
        self.scrape_error: str | None = None
        self.scrape_interval_s: float | None = None
        self.engine = spec.engine
        self.known_at_s = NEVER_S
        self.ramps_up_from_s = NEVER_S
        self.health = EndpointHealth()
        self.unanswered_requests = 0
        self.progress_events = 0
        self.cost = 1.0 / spec.weight

    @property
    def address(self) -> EndpointAddress:
        return self.spec.address

    @property
    def ip(self) -> str:
        """The address without its port; IPv6 without brackets."""
        return self.spec.address.rpartition(":")[0].strip("[]")

    @property
    def unready_too(self) -> bool:
        """Whether it was marked by a call while discovery calls it unready: not even the last resort."""
        return self.mark is not None and not self.spec.draining and self.spec.not_ready_reason is not None

    @property
    def tells_load(self) -> bool:
        """Whether its metrics give a load; without one only the own count ranks it."""
        return self.metrics is not None and self.metrics.has_load

    @property
    def key(self) -> tuple[EndpointAddress, str]:
        """What makes this endpoint the same one when discovery names it again."""
        return self.spec.address, self.spec.incarnation

    def __repr__(self) -> str:
        return f"<Endpoint {self.spec.name} {self.spec.address} {self.state.value} in_flight={self.in_flight_requests}>"

    def take_spec(self, spec: EndpointSpec) -> None:
        """Discovery says something new of the same incarnation."""
        if self.spec.engine != spec.engine:
            self.engine = spec.engine
        self.spec = spec
        self._update_load()

    def count_pick(self) -> None:
        """One more request is on its way here."""
        self.in_flight_requests += 1
        self.unanswered_requests += 1
        self._update_load()

    def count_release(self) -> None:
        """One request that was counted here has ended."""
        assert self.in_flight_requests > 0, f"{self!r}: released more often than picked"
        self.in_flight_requests -= 1
        self._update_load()

    def answered(self, status: int, now_s: float, picks_total: int, *, picked_at_s: float) -> None:
        """The first answer to a request that was picked here.

        5xx is a failure, unless the server says that it is busy (429, 503, 529) while it works on other requests: an
        overloaded server is no dead one. 429 alone never is a failure: it may be about one client. All of them cut the
        endpoint's share for a while. Everything else proves that the server works.

        Args:
            status: HTTP status.
            now_s: Monotonic.
            picks_total: Picks of the whole pool so far.
            picked_at_s: When the request was picked, monotonic.
        """
        self.unanswered_requests -= 1
        self.progress_events += 1
        if status < 500 and status != 429:
            if self.health.succeeded(now_s, sent_at_s=picked_at_s):
                self.ramps_up_from_s = now_s
            return
        why = f"answered {status}"
        if status == 429 or (status in BUSY_STATUSES and self._works_on_others()):
            self.health.busy(why, now_s, picks_total)
        else:
            self.health.failed(why, now_s, picks_total, sent_at_s=picked_at_s)
        self.ramps_up_from_s = now_s

    def _works_on_others(self) -> bool:
        """Whether it seems to have work besides the request that it answers now: by its metrics, or by our own count.

        A page that says idle counts only where it must have known of a request of ours and did not.
        """
        metrics = self.metrics
        if metrics is not None and metrics.has_load:
            if metrics.waiting_requests or metrics.running_requests:
                return True
            if self.in_flight_at_scrape > 1:
                return False
        return self.in_flight_requests > 1

    def lost_connection(self, why: str, now_s: float, picks_total: int, *, picked_at_s: float) -> None:
        """A request that was picked here found no connection, or lost it before an answer; arguments as in `answered`."""
        self.health.lost_connection(why, now_s, picks_total, sent_at_s=picked_at_s)
        self.ramps_up_from_s = now_s

    def passed_over(self, now_s: float, picks_total: int, *, picked_at_s: float) -> None:
        """A request that named it went on to the next one, and nobody says why; arguments as in `answered`.

        The proxy could not connect, lost the connection, or was told "busy" and has retries for that.
        """
        why = "failed a request that went on to another endpoint"
        if self._works_on_others():
            self.health.passed_over(why, now_s, picks_total)
            self.ramps_up_from_s = now_s
        else:
            self.lost_connection(why, now_s, picks_total, picked_at_s=picked_at_s)

    def cut(self, now_s: float, picks_total: int) -> None:
        """A running answer ended in the middle and is released already.

        Envoy tells the picker the same where the client went away. So it counts only once all answers that ran here are cut,
        and only where scrapes tell soon that all is well.
        """
        if self.scrape_interval_s is not None:
            self.health.cut(now_s, picks_total, was_last=self.in_flight_requests <= self.unanswered_requests)

    def refused_connections(self, now_s: float) -> None:
        """Its serving port refuses connections again and again: it only gets probes until it takes them."""
        self.health.refused(now_s)

    def accepted_connection(self, began_at_s: float) -> None:
        """It took a connection that was begun then, monotonic, whatever else it says."""
        if self.health.demoted_because is not None and self.health.accepted(began_at_s):
            self.ramps_up_from_s = began_at_s

    def scraped(self, metrics: EndpointMetrics, *, began_at_s: float, in_flight_at_begin: int) -> None:
        """Take over what a scrape said.

        Args:
            began_at_s: When the scrape began, monotonic.
            in_flight_at_begin: `in_flight_requests` at that moment; what was picked since may be missing in the page.
        """
        self.metrics = metrics
        self.scraped_at_s = self.known_at_s = began_at_s
        self.in_flight_at_scrape = in_flight_at_begin
        self.scrape_error = None
        self.accepted_connection(began_at_s)
        self._update_load()

    def scrape_failed(self, reason: str) -> None:
        """The latest scrape gave nothing; the last values stay (a server that is busy is slow to answer)."""
        self.scrape_error = reason

    def forget_metrics(self) -> None:
        """The process behind the address was restarted in place: its old numbers mean nothing now."""
        self.metrics = None
        self.scraped_at_s = None
        self.known_at_s = NEVER_S
        self._update_load()

    def metrics_age_s(self, now_s: float) -> float | None:
        """Seconds since the last good scrape began; None before the first."""
        return None if self.scraped_at_s is None else max(0.0, now_s - self.scraped_at_s)

    @property
    def load(self) -> LoadEstimate:
        """Estimated work on the server now."""
        return estimate_load(self.metrics, self.in_flight_requests, self.in_flight_at_scrape)

    def _update_load(self) -> None:
        cost = estimated_cost(self.metrics, self.in_flight_requests, self.in_flight_at_scrape)
        self.cost = (cost + 1.0) / self.spec.weight
