"""How often one endpoint is read: as often as was asked for, unless that costs the server or this process too much.

The interval counts from the start of one scrape to the start of the next. It is the longest of

- the interval that was asked for, and the shortest one that makes sense for the engine's page;
- the fair share of the whole pool's rate, so that all endpoints together stay under `scrape.maxRatePerSecond`;
- what keeps the server busy with our scrapes for at most `SERVER_TIME_RATIO` of the time. Model servers render the page
  on the loop that streams tokens, in 4–30 ms (ROCm/ATOM PR#2186), so a fixed 50 ms could take more than half of it;
- what keeps this process busy with reading the endpoint's pages for at most `OWN_TIME_RATIO` of the time;
- after failures, a pause that doubles with each one in a row.

No I/O and no clock in here.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from epp.scrape.reasons import Reason

SERVER_TIME_RATIO = 0.02
"""Part of wall time that a server may spend on being scraped."""
OWN_TIME_RATIO = 0.05
"""Part of one core that reading one endpoint's pages may take: no server can slow the picks by what it sends."""
REMEMBERED_READS = 8
"""The least of the last so many times to the first byte is taken as rendering; what is above it was waiting."""
READS_TO_TRUST = 3
"""Before so many reads a slow one may be a cold start, and the interval stretches only to `UNTRUSTED_INTERVAL_S`."""
UNTRUSTED_INTERVAL_S = 0.5
JITTER_RATIO = 0.15
"""Each pause is longer or shorter by up to this part, so that scrapes of many endpoints do not fall together."""
FAILURE_INTERVAL_S = 2.0
"""Longest interval after failures: a server that came back is seen this soon."""
LONG_TIMEOUT_FAILURES = 12
"""After so many timeouts in a row the server may need longer for its page than we wait (41 s were seen in
prometheus/client_python#367), and each try is work for it …"""
LONG_TIMEOUT_INTERVAL_S = 10.0
"""… so from then on the interval grows up to this."""
NOT_ENABLED_FIRST_INTERVAL_S = 0.5
NOT_ENABLED_INTERVAL_S = 15.0
"""Longest interval where the page is switched off or locked: only a restart or a new key changes that."""

_CLOSED = frozenset({Reason.NOT_ENABLED, Reason.NEEDS_KEY})


class Pace:
    """The rhythm of one endpoint's scrapes.

    Attributes:
        min_interval_s: Shortest interval that makes sense for the page in use, ≥ 0.
        requests_per_scrape: How many requests the last scrape took, ≥ 1 (more than one while the page is looked for); all
            of them count for the pool's rate.
        own_s: CPU time that reading what the last scrape brought took of this process, ≥ 0.
    """

    def __init__(self, *, interval_s: float, fair_share_s: Callable[[], float], random: Random) -> None:
        """Args:
        interval_s: The interval that was asked for.
        fair_share_s: The shortest interval that keeps the whole pool under its highest rate; may change any time.
        """
        self.min_interval_s = 0.0
        self.requests_per_scrape = 1
        self.own_s = 0.0
        self._asked_s = interval_s
        self._fair_share_s = fair_share_s
        self._random = random
        self._server_s: deque[float] = deque(maxlen=REMEMBERED_READS)
        self._failures_in_row = 0
        self._reason: Reason | None = None
        self._pauses = 0

    def succeeded(self, server_s: float) -> None:
        """A page was read, and the server took `server_s` for it (time to the first byte without the way there and back)."""
        self._server_s.append(max(0.0, server_s))
        self._failures_in_row = 0
        self._reason = None

    def failed(self, reason: Reason) -> None:
        """A scrape gave nothing."""
        self._failures_in_row = self._failures_in_row + 1 if _kind(reason) == _kind(self._reason) else 1
        self._reason = reason

    @property
    def interval_s(self) -> float:
        """Seconds from the start of the last scrape to the start of the next, without jitter."""
        share_s = self._fair_share_s() * self.requests_per_scrape
        steady_s = max(self._asked_s, self.min_interval_s, share_s, self._bearable_s(), self.own_s / OWN_TIME_RATIO)
        return max(steady_s, self._back_off_s(steady_s))

    def pause_s(self, took_s: float) -> float:
        """Seconds to wait now, after a scrape that took `took_s`; jittered, never so that `min_interval_s` is undercut.

        The first pause is anywhere below the interval, so that endpoints which joined together drift apart at once.
        """
        interval_s = self.interval_s
        self._pauses += 1
        least = JITTER_RATIO if self._pauses == 1 else 1.0 - JITTER_RATIO
        most = 1.0 if self._pauses == 1 else 1.0 + JITTER_RATIO
        jittered_s = max(self.min_interval_s, interval_s * self._random.uniform(least, most))
        return max(jittered_s - took_s, interval_s * JITTER_RATIO)

    def _bearable_s(self) -> float:
        if not self._server_s:
            return 0.0
        bearable_s = min(self._server_s) / SERVER_TIME_RATIO
        return bearable_s if len(self._server_s) >= READS_TO_TRUST else min(bearable_s, UNTRUSTED_INTERVAL_S)

    def _back_off_s(self, steady_s: float) -> float:
        if self._reason is None:
            return 0.0
        first_s, longest_s = steady_s, FAILURE_INTERVAL_S
        if self._reason in _CLOSED:
            first_s, longest_s = max(steady_s, NOT_ENABLED_FIRST_INTERVAL_S), NOT_ENABLED_INTERVAL_S
        elif self._reason is Reason.TIMEOUT and self._failures_in_row > LONG_TIMEOUT_FAILURES:
            longest_s = LONG_TIMEOUT_INTERVAL_S
        doublings = min(self._failures_in_row, 16)  # 2 ** 16 is beyond every longest interval, and no float overflows
        return min(longest_s, first_s * 2.0**doublings)


def _kind(reason: Reason | None) -> Reason | None:
    """Failures of one kind make one row; timeouts and a closed page each count for themselves."""
    if reason is None or reason is Reason.TIMEOUT:
        return reason
    return Reason.NOT_ENABLED if reason in _CLOSED else Reason.CONNECT
