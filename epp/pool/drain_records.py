"""What really happens when endpoints leave rotation, measured: until when requests still came, and until when they ran."""

from collections.abc import Callable
from math import ceil
from typing import Any

from epp.clock import Clock

MAX_RECORDS = 500
RECOMMENDED_FROM = 100
"""The addresses that drained last alone say what to recommend: what was long ago may have been another network."""
SHARE_COVERED = 0.95
SPARE_FACTOR = 2.0
SPARE_S = 1.0

Key = tuple[str, str]
"""Address and incarnation."""


class DrainRecord:
    """How one incarnation of an endpoint left rotation; when it did so several times, the slowest of them.

    Attributes:
        seen_by: What showed it first: `call`, or the source of the pool (`kubernetes`, `file`, `dns`, `static`).
        reason: Why it left, in one sentence.
        began_at_s: First sight, monotonic; of the last time.
        began_wall_s: The same in seconds since 1970 UTC.
        times: How often it left (a flapping endpoint is one record).
        in_flight_requests: How many ran there at first sight.
        late_picks: Requests that came there after first sight, sent by another picker or by Envoy itself. What this picker
            sends there as the last resort is none.
        last_pick_s: From first sight to the last of those; 0 without any.
        last_stream_s: From first sight until the last request ended; 0 when none ran.
        cut_requests: Requests that ended after first sight without a whole answer, by whomever's fault.
        over: It is gone, or back in rotation.
        latest_pick_s: As `last_pick_s`, of the last time alone.
        latest_stream_s: As `last_stream_s`, of the last time alone.
    """

    __slots__ = (
        "began_at_s", "began_wall_s", "cut_requests", "in_flight_requests", "key", "last_pick_s", "last_stream_s", "late_picks",
        "latest_pick_s", "latest_stream_s", "name", "over", "reason", "seen_by", "times",
    )  # fmt: skip

    def __init__(self, key: Key) -> None:
        self.key = key
        self.name = ""
        self.seen_by = ""
        self.reason: str | None = None
        self.began_at_s = self.began_wall_s = 0.0
        self.times = 0
        self.in_flight_requests = 0
        self.late_picks = 0
        self.last_pick_s = self.last_stream_s = self.latest_pick_s = self.latest_stream_s = 0.0
        self.cut_requests = 0
        self.over = False

    def as_json(self) -> dict[str, Any]:
        """One entry of `GET /api/v1/drains`."""
        return {
            "endpoint": self.key[0],
            "incarnation": self.key[1],
            "name": self.name,
            "seen_by": self.seen_by,
            "reason": self.reason,
            "at": round(self.began_wall_s, 3),
            "times": self.times,
            "in_flight_requests": self.in_flight_requests,
            "late_picks": self.late_picks,
            "last_pick_s": round(self.last_pick_s, 3),
            "last_stream_s": round(self.last_stream_s, 3),
            "cut_requests": self.cut_requests,
            "over": self.over,
        }


class DrainRecords:
    """The last drains, a limited number, newest last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[Key, DrainRecord] = {}
        self._on_end: list[Callable[[DrainRecord], None]] = []
        self._on_cut: list[Callable[[], None]] = []

    # ── reading ──

    def newest(self) -> list[DrainRecord]:
        """All that are kept, the newest first."""
        return list(reversed(self._records.values()))

    @property
    def recommended_min_wait_s(self) -> float | None:
        """How long a preStop hook should wait at least before it looks whether the server is idle; None without a record.

        Twice the time within which the last late request had come at 95 % of the 100 addresses that drained last, and 1 s more
        for what was on its way then. Each address counts once, with the slowest of its times: a server that crashes again and
        again must not outvote those that were rolled.
        """
        slowest_s: dict[str, float] = {}
        for record in reversed(self._records.values()):
            address = record.key[0]
            if address in slowest_s or len(slowest_s) < RECOMMENDED_FROM:
                slowest_s[address] = max(record.last_pick_s, slowest_s.get(address, 0.0))
        if not slowest_s:
            return None
        lasts_s = sorted(slowest_s.values())
        return SPARE_FACTOR * lasts_s[ceil(SHARE_COVERED * len(lasts_s)) - 1] + SPARE_S

    # ── the pool writes ──

    def begin(self, key: Key, *, name: str, seen_by: str, reason: str | None, in_flight_requests: int) -> DrainRecord:
        """First sight of an endpoint that leaves rotation."""
        record = self._records.pop(key, None) or DrainRecord(key)
        self._records[key] = record
        if len(self._records) > MAX_RECORDS:
            del self._records[next(iter(self._records))]
        record.name, record.seen_by, record.reason = name, seen_by, reason
        record.began_at_s, record.began_wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        record.latest_pick_s = record.latest_stream_s = 0.0
        record.times += 1
        record.in_flight_requests = in_flight_requests
        record.over = False
        return record

    def picked(self, record: DrainRecord) -> None:
        """A request came there all the same."""
        record.late_picks += 1
        record.latest_pick_s = self._clock.monotonic_s() - record.began_at_s
        record.last_pick_s = max(record.last_pick_s, record.latest_pick_s)

    def released(self, record: DrainRecord, *, cut: bool) -> None:
        """A request there has ended; `cut` when its answer was not whole."""
        record.latest_stream_s = self._clock.monotonic_s() - record.began_at_s
        record.last_stream_s = max(record.last_stream_s, record.latest_stream_s)
        if cut:
            record.cut_requests += 1
            for listener in self._on_cut:
                listener()

    def end(self, record: DrainRecord) -> None:
        """The endpoint is gone, or takes requests again."""
        record.over = True
        for listener in self._on_end:
            listener(record)

    # ── listening ──

    def on_end(self, listener: Callable[[DrainRecord], None]) -> None:
        """Call `listener` with each record when the endpoint is gone or back."""
        self._on_end.append(listener)

    def on_cut(self, listener: Callable[[], None]) -> None:
        """Call `listener` for each request that is cut at an endpoint that has left rotation."""
        self._on_cut.append(listener)
