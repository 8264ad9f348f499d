"""What an endpoint's own answers tell: failing at once, stuck, or well again.

Metrics cannot tell a broken server from an idle one: a server that answers 500 in 5 ms has no queue. So an endpoint whose
answers keep failing, or that holds requests while it makes no progress, gets only a trickle of requests (probes) until
one of them succeeds, and then half its share for a while.
"""

FAILURES_TO_DEMOTE = 3
"""Failed answers in a row, with no good one between, after which an endpoint only gets probes."""
PROBE_EVERY_S = 10.0
"""A demoted endpoint is probed at least this often while there is traffic …"""
PROBE_REFUSING_EVERY_S = 60.0
"""One whose port refuses connections is probed this rarely: its scrapes tell sooner, and cost no request."""
PROBE_EVERY_PICKS = 40
"""… or after this many picks, if that comes first …"""
PROBE_PAUSE_S = 1.0
"""… but not sooner than this after the last probe."""

REFUSES = "refuses connections"


class EndpointHealth:
    """Memory of one endpoint's answers.

    Attributes:
        failures_in_row: Failed answers since the last good one.
        demoted_because: Why it only gets probes, in one sentence; None while it gets its share.
    """

    __slots__ = ("_picks_at_probe", "_probed_at_s", "demoted_because", "failures_in_row")

    def __init__(self) -> None:
        self.failures_in_row = 0
        self.demoted_because: str | None = None
        self._probed_at_s = 0.0
        self._picks_at_probe: int | None = None

    def failed(self, why: str, now_s: float, picks: int) -> None:
        """An answer failed.

        Args:
            why: For people, such as `answered 500`.
            now_s: Monotonic.
            picks: Picks of the whole pool so far.
        """
        self.failures_in_row += 1
        if self.failures_in_row >= FAILURES_TO_DEMOTE or self.demoted_because is not None:
            self.demote(f"{self.failures_in_row} answers in a row failed, the last one {why}", now_s, picks)

    def demote(self, why: str, now_s: float, picks: int | None = None) -> None:
        """Give it only probes from now on; without `picks` the first probe goes by time alone."""
        self.demoted_because = why
        self._probed_at_s = now_s
        self._picks_at_probe = picks

    def succeeded(self) -> bool:
        """An answer was good. True if the endpoint was demoted until now (it then ramps up like a fresh one)."""
        self.failures_in_row = 0
        was_demoted, self.demoted_because = self.demoted_because is not None, None
        return was_demoted

    def refused(self, now_s: float) -> None:
        """It refuses connections."""
        if self.demoted_because is None:
            self.demote(REFUSES, now_s)

    def accepted(self) -> bool:
        """It takes connections. True if it was demoted until now for refusing them."""
        if self.demoted_because is not REFUSES:
            return False
        self.demoted_because = None
        return True

    def probe_is_due(self, now_s: float, picks: int) -> bool:
        """Whether the next pick may try this demoted endpoint."""
        since_s = now_s - self._probed_at_s
        if self.demoted_because is REFUSES:  # the next scrape that finds a connection restores it sooner
            return since_s >= PROBE_REFUSING_EVERY_S
        if since_s >= PROBE_EVERY_S or self._picks_at_probe is None:
            return since_s >= PROBE_EVERY_S
        return since_s >= PROBE_PAUSE_S and picks - self._picks_at_probe >= PROBE_EVERY_PICKS

    def probed(self, now_s: float, picks: int) -> None:
        """A probe is on its way; the next one waits."""
        self._probed_at_s = now_s
        self._picks_at_probe = picks
