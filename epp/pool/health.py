"""What an endpoint's own answers tell: failing at once, refusing, stuck, or well again.

Metrics cannot tell a broken server from an idle one: a server that answers 500 in 5 ms has no queue. So an endpoint whose
answers keep failing, or that holds requests while it makes no progress, gets only a trickle of requests (probes) until
one of them succeeds, and then half its share for a while. One that refused or broke a connection is left alone at once, and
until it takes the next connection, which a scrape finds out within moments.

A server that shuts down may finish what it has with 200 while it fails everything new. So a good answer excuses only the
failures of requests that were sent before its own.
"""

FAILURES_TO_DEMOTE = 3
"""Failed answers in a row, with no good one between, after which an endpoint only gets probes."""
BUSY_ANSWERS_TO_DEMOTE = 20
"""The same for answers that say "busy", of a server that seems to work on other requests …"""
RECENT_S = 5.0
"""… if none was good for this long: an overloaded server gives a good answer now and then."""
CUTS_WITHIN_S = 2.0
"""Two running answers that end in the middle this close together are no coincidence."""
PROBE_EVERY_S = 10.0
"""A demoted endpoint is probed at least this often while there is traffic …"""
PROBE_REFUSING_EVERY_S = 60.0
"""One whose port refuses connections is probed this rarely: its scrapes tell sooner, and cost no request."""
PROBE_EVERY_PICKS = 40
"""… or after this many picks, if that comes first …"""
PROBE_PAUSE_S = 1.0
"""… but not sooner than this after the last probe, and after each probe in vain not sooner than after twice as long …"""
LONGEST_PROBE_PAUSE_S = 8.0
"""… up to this: a server that takes minutes to drain would else cost a request each second."""

REFUSES = "refuses connections"
CUT = "cut its running answers"
NEVER_S = float("-inf")


class EndpointHealth:
    """Memory of one endpoint's answers.

    Attributes:
        failures_in_row: Failed answers since the last good one.
        busy_in_row: Answers that said "busy" since the last good one.
        demoted_because: Why it only gets probes, in one sentence; None while it gets its share.
    """

    __slots__ = (
        "_cut_at_s",
        "_failed_from_s",
        "_good_at_s",
        "_heals_by_connection",
        "_lost_at_s",
        "_picks_at_probe",
        "_probe_pause_s",
        "_probed_at_s",
        "_refused_at_s",
        "busy_in_row",
        "demoted_because",
        "failures_in_row",
    )

    def __init__(self) -> None:
        self.failures_in_row = 0
        self.busy_in_row = 0
        self.demoted_because: str | None = None
        self._probed_at_s = 0.0
        self._picks_at_probe: int | None = None
        self._probe_pause_s = PROBE_PAUSE_S
        self._failed_from_s = NEVER_S  # when the newest request that failed was sent: older ones excuse nothing
        self._good_at_s = NEVER_S
        self._cut_at_s = NEVER_S
        self._heals_by_connection = False
        self._refused_at_s = NEVER_S  # when scrapes of a failing one were refused last, until they are not
        self._lost_at_s = NEVER_S  # when the connection was lost that another one must heal

    def failed(self, why: str, now_s: float, picks: int, *, sent_at_s: float) -> None:
        """An answer failed.

        Args:
            why: For people, such as `answered 500`.
            now_s: Monotonic.
            picks: Picks of the whole pool so far.
            sent_at_s: When the request was picked, monotonic.
        """
        self._note_failure(sent_at_s)
        self.failures_in_row += 1
        if self.failures_in_row >= FAILURES_TO_DEMOTE or self.demoted_because is not None:
            self.demote(f"{self.failures_in_row} answers in a row failed, the last one {why}", now_s, picks)

    def busy(self, why: str, now_s: float, picks: int) -> None:
        """A server that works on other requests took no more; arguments as in `failed`."""
        self.busy_in_row += 1
        if self.busy_in_row >= BUSY_ANSWERS_TO_DEMOTE and now_s - self._good_at_s >= RECENT_S:
            self.demote(f"{self.busy_in_row} answers in a row turned requests away, the last one {why}", now_s, picks)

    def lost_connection(self, why: str, now_s: float, picks: int, *, sent_at_s: float) -> None:
        """A request found no connection, or lost it before an answer: probes only, until the next connection holds.

        Many requests may tell of one event, which counts as one failure; where connections hold and requests still fail,
        several such events demote like failed answers.

        Args:
            why: For people, such as `refused a connection`.
            now_s, picks, sent_at_s: As in `failed`.
        """
        self._note_failure(sent_at_s)
        self._lost_at_s = now_s
        if self.demoted_because is not None:
            return
        self.failures_in_row += 1
        if self.failures_in_row >= FAILURES_TO_DEMOTE:
            self.demote(f"{self.failures_in_row} answers in a row failed, the last one {why}", now_s, picks)
        else:
            self._demote_until_connected(why, now_s, picks)

    def passed_over(self, why: str, now_s: float, picks: int) -> None:
        """A request went on from a server that seems to work on others: probes only, until it is well or a connection holds.

        It may have lost its connection or said "busy", which the proxy keeps to itself; so however often, it is no failure.
        Arguments as in `failed`.
        """
        if self.demoted_because is None:
            self.busy(why, now_s, picks)
        if self.demoted_because is None:
            self._demote_until_connected(why, now_s, picks)

    def cut(self, now_s: float, picks: int, *, was_last: bool) -> None:
        """A running answer ended in the middle, which may also be a client that went away.

        Args:
            now_s, picks: As in `failed`.
            was_last: No other answer runs there any more.
        """
        is_second = now_s - self._cut_at_s <= CUTS_WITHIN_S
        self._cut_at_s = now_s
        if is_second and was_last and self.demoted_because is None:
            self._demote_until_connected(CUT, now_s, picks)

    def demote(self, why: str, now_s: float, picks: int | None = None) -> None:
        """Give it only probes from now on; without `picks` the first probe goes by time alone."""
        if self.demoted_because is None:
            self._probe_pause_s, self._refused_at_s = PROBE_PAUSE_S, NEVER_S
        self.demoted_because = why
        self._heals_by_connection = False
        self._probed_at_s = now_s
        self._picks_at_probe = picks

    def _demote_until_connected(self, why: str, now_s: float, picks: int | None) -> None:
        self.demote(why, now_s, picks)
        self._heals_by_connection = True
        self._lost_at_s = now_s

    def _note_failure(self, sent_at_s: float) -> None:
        self._failed_from_s = max(self._failed_from_s, sent_at_s)

    def succeeded(self, now_s: float, *, sent_at_s: float) -> bool:
        """An answer was good. True if the endpoint was demoted until now (it then ramps up like a fresh one).

        Args:
            now_s: Monotonic.
            sent_at_s: When the request was picked, monotonic.
        """
        self._good_at_s = now_s
        self.busy_in_row = 0
        if sent_at_s < self._failed_from_s:
            return False
        self.failures_in_row = 0
        was_demoted, self.demoted_because = self.demoted_because is not None, None
        return was_demoted

    def refused(self, now_s: float) -> None:
        """It refuses the connections of scrapes. One that failed before must show by a probe that it is well, but later."""
        if self.demoted_because is None or self._heals_by_connection:
            self._note_failure(now_s)
            if self.demoted_because is not REFUSES:
                self._demote_until_connected(REFUSES, now_s, None)
        else:
            self._refused_at_s = now_s

    def accepted(self, since_s: float) -> bool:
        """It took a connection that was begun at `since_s`. True if it was demoted until now for want of one.

        Not where that was only suspected of it: then nothing happened, and it has its share back at once.
        """
        if since_s >= self._refused_at_s > NEVER_S:  # it may be another process
            self._probe_pause_s, self._refused_at_s = PROBE_PAUSE_S, NEVER_S
        if self.demoted_because is None or not self._heals_by_connection or since_s < self._lost_at_s:
            return False
        was_suspected, self.demoted_because = self.demoted_because is CUT, None
        return not was_suspected

    def probe_is_due(self, now_s: float, picks: int) -> bool:
        """Whether the next pick may try this demoted endpoint."""
        since_s = now_s - self._probed_at_s
        if (
            self.demoted_because is REFUSES or self._refused_at_s > NEVER_S
        ):  # the next scrape that finds a connection restores it sooner
            return since_s >= PROBE_REFUSING_EVERY_S
        if since_s >= PROBE_EVERY_S or self._picks_at_probe is None:
            return since_s >= PROBE_EVERY_S
        return since_s >= self._probe_pause_s and picks - self._picks_at_probe >= PROBE_EVERY_PICKS

    def probed(self, now_s: float, picks: int) -> None:
        """A probe is on its way; the next one waits."""
        if now_s - self._probed_at_s >= self._probe_pause_s:
            self._probe_pause_s = min(2 * self._probe_pause_s, LONGEST_PROBE_PAUSE_S)
        self._probed_at_s = now_s
        self._picks_at_probe = picks
