"""What became of each request, and what that says about the drain and the crash."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    """200 and the whole answer; a stream up to its end mark."""
    REFUSED = "refused"
    """A status other than 200."""
    CUT = "cut"
    """200, and then the connection or the stream ended before its end mark, or with an error in it."""
    BROKEN = "broken"
    """200, ended as if nothing was wrong, and is no answer; or no status at all."""
    HUNG = "hung"
    """Nobody knows: the client gave up waiting."""

    @property
    def clean(self) -> bool:
        """Whether the client knows what it got."""
        return self in (Ending.ANSWERED, Ending.REFUSED, Ending.CUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request that ended. Times are on the demo's clock.

    Attributes:
        server: Name of the server that answered; None when none did.
        first_byte_s: From the request to the first byte of a stream's body; None for all but streams with a body.
        seen: What the client saw, in a few words, such as `503` or `stream cut`; empty for an answer.
    """

    streaming: bool
    server: str | None
    began_at_s: float
    ended_at_s: float
    first_byte_s: float | None = None
    ending: Ending
    seen: str = ""

    @property
    def duration_s(self) -> float:
        """From the request to the end of its answer."""
        return self.ended_at_s - self.began_at_s


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the demo, both ends included."""

    began_at_s: float
    ended_at_s: float

    def holds(self, at_s: float) -> bool:
        """Whether a moment is inside."""
        return self.began_at_s <= at_s <= self.ended_at_s


class Tally:
    """All outcomes so far.

    Attributes:
        outcomes: In the order of their ends.
    """

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """A request ended."""
        self.outcomes.append(outcome)

    def __len__(self) -> int:
        return len(self.outcomes)

    def answered(self, server: str | None = None) -> list[Outcome]:
        """Requests answered, by one server or by all."""
        return [o for o in self.outcomes if o.ending is Ending.ANSWERED and server in (None, o.server)]

    def failed(self, window: Window | None = None) -> list[Outcome]:
        """Requests that ended in any other way, inside `window` or at any time."""
        return [o for o in self.outcomes if o.ending is not Ending.ANSWERED and (window is None or window.holds(o.ended_at_s))]

    def unclean(self) -> list[Outcome]:
        """Requests whose clients do not know what they got."""
        return [o for o in self.outcomes if not o.ending.clean]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The server that was drained.

    Attributes:
        window: From the change of the endpoints file until a moment after the process had ended. Nothing else happens in
            it, so every request that fails in it is lost to the drain, whichever server it was on.
        idle_after_s: When the picker counted none any more, in seconds after the start; None if it never did.
        process_ended: How the process ended, such as `exit code 0`.
    """

    server: str
    window: Window
    idle_after_s: float | None
    process_ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The server that was killed and started again.

    Attributes:
        window: From SIGKILL until a moment after its first answer after the restart, or until the end.
        in_flight_at_kill: Requests on it when it was killed, as the picker counts.
        restarted_after_s: When its process was started again and listened, in seconds after SIGKILL.
        answered_after_s: When it answered again, in seconds after SIGKILL; None if it did not.
    """

    server: str
    window: Window
    in_flight_at_kill: int
    restarted_after_s: float
    answered_after_s: float | None


def complaints(tally: Tally, drain: Drain, crash: Crash) -> list[str]:
    """Why the demo failed, in sentences; empty when it did not."""
    found = []
    if not tally.answered():
        found.append("no request was answered")
    if drain.idle_after_s is None:
        found.append(f"the picker never counted 0 requests in flight on {drain.server}, so the drain did not end")
    if lost := tally.failed(drain.window):
        found.append(f"{_requests(lost)} failed while {drain.server} drained: {seen(lost)}")
    if unclean := tally.unclean():
        found.append(f"{_requests(unclean)} got neither an answer nor a clean error: {seen(unclean)}")
    if other := failed_at_other_times(tally, drain, crash):
        found.append(f"{_requests(other)} failed outside the drain and the crash: {seen(other)}")
    return found


def failed_at_other_times(tally: Tally, drain: Drain, crash: Crash) -> list[Outcome]:
    """Requests with a clean error that neither the drain nor the crash explains."""
    return [
        outcome
        for outcome in tally.failed()
        if outcome.ending.clean and not drain.window.holds(outcome.ended_at_s) and not crash.window.holds(outcome.ended_at_s)
    ]


def seen(outcomes: Iterable[Outcome]) -> str:
    """What clients saw, the most frequent first, such as `503 x4, stream cut x2`."""
    counts = Counter(outcome.seen for outcome in outcomes)
    return ", ".join(f"{what} x{count}" for what, count in counts.most_common())


def quantile(values: Iterable[float], ratio: float) -> float | None:
    """The smallest value that at least this part (0 to 1) of the values does not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)] if ordered else None


def _requests(outcomes: Sequence[Outcome]) -> str:
    return "1 request" if len(outcomes) == 1 else f"{len(outcomes)} requests"
