"""Our picture of the pool: the one mutable store. Discovery and scrape write it, picks read it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from epp.clock import Clock
from epp.pool.drain_marks import DrainMark
from epp.pool.drain_records import DrainRecords
from epp.pool.endpoint import Endpoint, EndpointAddress, EndpointSpec, EndpointState

DRAINING_REASON = "marked as draining"
CALLED_REASON = "a drain call asked for it"


class PoolState:
    """The endpoints of one pool.

    An endpoint that discovery no longer names leaves `endpoints` at once; while requests still run on it, it is kept
    in `leaving`, so that they stay counted on the incarnation that was picked.

    Attributes:
        name: Of the pool, for people and metrics.
        source: `file`, `dns`, `static` or `kubernetes`.
        listed: Whether discovery has told the whole membership at least once.
        picks_total: Picks made so far.
        details: What the source says of the pool besides, for people.
        drains: What was measured when endpoints left rotation.
    """

    def __init__(self, clock: Clock, *, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.listed = False
        self.picks_total = 0
        self.details: Mapping[str, str | None] = {}
        self.drains = DrainRecords(clock)
        self._clock = clock
        self._endpoints: dict[tuple[EndpointAddress, str], Endpoint] = {}
        self._leaving: dict[tuple[EndpointAddress, str], Endpoint] = {}
        self._ready: tuple[Endpoint, ...] = ()
        self._on_listed: list[Callable[[], None]] = []
        self._on_join: list[Callable[[Endpoint], None]] = []
        self._on_leave: list[Callable[[Endpoint], None]] = []
        self._on_gone: list[Callable[[Endpoint], None]] = []
        self._on_change: list[Callable[[Endpoint], None]] = []
        self._idle_watchers: dict[Endpoint, list[Callable[[], None]]] = {}

    # ── reading ──

    @property
    def ready(self) -> tuple[Endpoint, ...]:
        """Endpoints that new picks may go to. The tuple is replaced, never changed, so it can be kept during a pick."""
        return self._ready

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All that discovery names, whatever their state."""
        return tuple(self._endpoints.values())

    @property
    def leaving(self) -> tuple[Endpoint, ...]:
        """Endpoints that discovery no longer names and on which requests still run."""
        return tuple(self._leaving.values())

    @property
    def draining(self) -> tuple[Endpoint, ...]:
        """Endpoints that discovery still names and that get nothing new because they drain, and for no other reason."""
        return tuple(e for e in self._endpoints.values() if e.state is EndpointState.DRAINING and not e.unready_too)

    def find(self, address: EndpointAddress) -> Endpoint | None:
        """The endpoint at `address` that discovery names now, else one that is leaving."""
        return next((e for e in self._everyone() if e.spec.address == address), None)

    @property
    def in_flight_requests(self) -> int:
        """Picked and not finished, over all endpoints."""
        return sum(e.in_flight_requests for e in self._everyone())

    # ── membership: discovery writes ──

    def sync(self, specs: Iterable[EndpointSpec]) -> None:
        """Make the pool equal to `specs`: what is absent leaves, what is new joins, what changed is changed.

        Of several specs with one address the first counts (two incarnations of a pod may overlap in a listing).
        """
        wanted: dict[EndpointAddress, EndpointSpec] = {}
        for spec in specs:
            wanted.setdefault(spec.address, spec)
        staying = {(spec.address, spec.incarnation) for spec in wanted.values()}
        for key in [key for key in self._endpoints if key not in staying]:
            self._leave(self._endpoints.pop(key))
        for spec in wanted.values():
            self._upsert(spec)
        self._rebuild()
        if not self.listed:
            self.listed = True
            for listener in self._on_listed:
                listener()

    def _upsert(self, spec: EndpointSpec) -> None:
        key = spec.address, spec.incarnation
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._leaving.pop(key, None) or Endpoint(spec)
            self._endpoints[key] = endpoint
            if self.listed:
                endpoint.ramps_up_from_s = self._clock.monotonic_s()
            self._apply(endpoint, spec)
            self._note_return(endpoint)
            for listener in self._on_join:
                listener(endpoint)
        elif (endpoint.spec is not spec and endpoint.spec != spec) or endpoint.state is EndpointState.UNREADY:
            was_ready = endpoint.state is EndpointState.READY
            before = endpoint.spec
            self._change(endpoint, spec, seen_by=self.source)
            if endpoint.state is EndpointState.READY and not was_ready:
                endpoint.ramps_up_from_s = self._clock.monotonic_s()
            if before != spec:
                for listener in self._on_change:
                    listener(endpoint)

    def _change(self, endpoint: Endpoint, spec: EndpointSpec, *, seen_by: str) -> None:
        """Take over what is said of an endpoint that was there before."""
        before = endpoint.state
        self._apply(endpoint, spec)
        if endpoint.state is EndpointState.DRAINING and before is not EndpointState.DRAINING:
            self._note_drain(endpoint, seen_by)
        else:
            self._note_return(endpoint)

    @staticmethod
    def _apply(endpoint: Endpoint, spec: EndpointSpec) -> None:
        endpoint.take_spec(spec)
        if spec.draining:
            endpoint.state, endpoint.reason = EndpointState.DRAINING, spec.draining_reason or DRAINING_REASON
        elif endpoint.mark is not None:
            why = CALLED_REASON if spec.not_ready_reason is None else f"{CALLED_REASON}, and {spec.not_ready_reason}"
            endpoint.state, endpoint.reason = EndpointState.DRAINING, why
        elif spec.not_ready_reason is not None:
            endpoint.state, endpoint.reason = EndpointState.UNREADY, spec.not_ready_reason
        else:
            endpoint.state, endpoint.reason = EndpointState.READY, None

    def _leave(self, endpoint: Endpoint) -> None:
        before = endpoint.state
        endpoint.state, endpoint.reason = EndpointState.DRAINING, "no longer in the pool"
        endpoint.mark = None
        if before is EndpointState.READY or (before is EndpointState.UNREADY and endpoint.in_flight_requests):
            self._note_drain(endpoint, self.source)
        for listener in self._on_leave:
            listener(endpoint)
        if endpoint.in_flight_requests:
            self._leaving[endpoint.key] = endpoint
        else:
            self._gone(endpoint)

    def _note_drain(self, endpoint: Endpoint, seen_by: str) -> None:
        endpoint.drain = self.drains.begin(
            endpoint.key,
            name=endpoint.spec.name,
            seen_by=seen_by,
            reason=endpoint.reason,
            in_flight_requests=endpoint.in_flight_requests,
        )

    def _note_return(self, endpoint: Endpoint) -> None:
        if endpoint.drain is not None and endpoint.state is not EndpointState.DRAINING:
            self.drains.end(endpoint.drain)
            endpoint.drain = None

    def _gone(self, endpoint: Endpoint) -> None:
        if endpoint.drain is not None:
            self.drains.end(endpoint.drain)
            endpoint.drain = None
        for listener in self._on_gone:
            listener(endpoint)

    def _rebuild(self) -> None:
        self._ready = tuple(e for e in self._endpoints.values() if e.state is EndpointState.READY)

    def _everyone(self) -> Iterator[Endpoint]:
        yield from self._endpoints.values()
        yield from self._leaving.values()

    # ── drain marks: calls write ──

    def mark(self, endpoint: Endpoint, mark: DrainMark) -> None:
        """From this step on nothing new goes to `endpoint`, whatever discovery says; what runs there stays counted.

        A mark that was there is replaced. An endpoint that has left needs none: it gets nothing any more.
        """
        if self._endpoints.get(endpoint.key) is endpoint:
            endpoint.mark = mark
            self._change(endpoint, endpoint.spec, seen_by="call")
            self._rebuild()

    def lift_mark(self, endpoint: Endpoint) -> bool:
        """Take the mark away: from now on only what discovery says counts. False if there was none."""
        if endpoint.mark is None:
            return False
        endpoint.mark = None
        self._change(endpoint, endpoint.spec, seen_by="call")
        if endpoint.state is EndpointState.READY:
            endpoint.ramps_up_from_s = self._clock.monotonic_s()
        self._rebuild()
        return True

    def end_marks(self) -> list[Endpoint]:
        """Lift the marks whose time is over; the endpoints that had them. Call it about each second."""
        now_s = self._clock.monotonic_s()
        ended = [e for e in self._endpoints.values() if e.mark is not None and e.mark.ended(now_s)]
        for endpoint in ended:
            self.lift_mark(endpoint)
        return ended

    # ── counting: picks write ──

    def count_pick(self, endpoint: Endpoint) -> None:
        """Count one request on `endpoint`, in the same step as the choice."""
        self.picks_total += 1
        endpoint.count_pick()

    def count_moved(self, endpoint: Endpoint) -> None:
        """A request that was counted elsewhere turned out to be here; it is the same pick."""
        endpoint.count_pick()
        if endpoint.drain is not None:
            self.drains.picked(endpoint.drain)

    def count_release(self, endpoint: Endpoint, *, cut: bool = False) -> None:
        """Take back one count; an endpoint that has left and holds nothing any more is forgotten.

        Args:
            cut: The answer of that request was not whole.
        """
        endpoint.count_release()
        if endpoint.drain is not None:
            self.drains.released(endpoint.drain, cut=cut)
        if endpoint.in_flight_requests:
            return
        if self._leaving.get(endpoint.key) is endpoint:
            del self._leaving[endpoint.key]
            self._gone(endpoint)
        for watcher in self._idle_watchers.pop(endpoint, ()) if self._idle_watchers else ():
            watcher()

    # ── listening ──

    @property
    def idle_watchers(self) -> int:
        """How many wait for the last request of an endpoint."""
        return sum(map(len, self._idle_watchers.values()))

    def watch_idle(self, endpoint: Endpoint, watcher: Callable[[], None]) -> None:
        """Call `watcher` once when the last request on `endpoint` ends; `unwatch_idle` takes it back."""
        self._idle_watchers.setdefault(endpoint, []).append(watcher)

    def unwatch_idle(self, endpoint: Endpoint, watcher: Callable[[], None]) -> None:
        """Do not call `watcher` any more; does nothing when it was called."""
        watchers = self._idle_watchers.get(endpoint, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self._idle_watchers.pop(endpoint, None)

    def on_listed(self, listener: Callable[[], None]) -> None:
        """Call `listener` once the whole membership is known; at once when it is."""
        if self.listed:
            listener()
        else:
            self._on_listed.append(listener)

    def on_join(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener` with each endpoint that joins (also again after it left)."""
        self._on_join.append(listener)

    def on_leave(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener` with each endpoint that discovery no longer names."""
        self._on_leave.append(listener)

    def on_gone(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener` with each endpoint that has left and holds no request any more."""
        self._on_gone.append(listener)

    def on_change(self, listener: Callable[[Endpoint], None]) -> None:
        """Call `listener` with each endpoint whose spec changed while it stayed."""
        self._on_change.append(listener)
