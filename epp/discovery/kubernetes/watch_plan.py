"""When to watch again, when to list again, and how long to wait before; no I/O.

A watch may go on from a resource version only where that loses nothing for sure: after an end at its own time limit. After any
other end the list is read again: it costs little and is never wrong.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

from epp.discovery.kubernetes.api_errors import ApiError

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 10.0
"""An API server that is back should not wait long for us; a request in ten seconds costs it nothing."""
WATCH_MIN_S, WATCH_MAX_S = 45, 60
"""Bounds of the time limit of a watch; random, so that many watches do not end together."""
GRACE_S = 5.0
"""A watch that goes on for so long after its time limit is half open: the server is not there any more."""
IN_TIME_RATIO = 0.9
"""A proper end after this part of the time limit is taken for the time limit's."""
STEADY_S = 10.0
"""A watch that lived so long proves that the server is well."""
STEADY_WITH_EVENT_S = 1.0
"""The same for a watch that brought an event; less would let a server that cuts after each event be listed all the time."""
ABSENT_LOOK_S = 60.0
"""How often it is looked whether an optional kind was installed."""


_VERSION_MAX_DIGITS = 40


class Ending(Enum):
    """How a watch ended."""

    TIMED_OUT = "timed_out"
    """Properly, at its time limit."""
    EARLY = "early"
    """Properly, but before its time limit: a server that shuts down, or a proxy's limit."""
    CUT = "cut"
    """The connection broke, or the last line is not whole."""
    SILENT = "silent"
    """It did not end when it should have."""
    GONE = "gone"
    """410: its resource version is too old."""
    REFUSED = "refused"
    """The server answered with another error, or sent one as an event, or something that is no event."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to do after a watch.

    Attributes:
        resume: Go on watching from the last resource version; else list again.
        pause_s: How long to wait before.
    """

    resume: bool
    pause_s: float


class BackOff:
    """Pauses that get longer, with full jitter (each is random between 0 and the limit, and the limit doubles)."""

    def __init__(self, random: Random, *, first_s: float = PAUSE_FIRST_S, max_s: float = PAUSE_MAX_S) -> None:
        self._random = random
        self._first_s = first_s
        self._max_s = max_s
        self._limit_s = first_s

    def pause_s(self, at_least_s: float = 0.0) -> float:
        """The next pause; `at_least_s` when the server asked for that, and then a little more."""
        limit_s, self._limit_s = self._limit_s, min(self._max_s, self._limit_s * 2.0)
        return at_least_s + self._random.uniform(0.0, limit_s)

    def reset(self) -> None:
        """The next pause is short again."""
        self._limit_s = self._first_s


class WatchPlan:
    """The course of one resource's lists and watches."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._back_off = BackOff(random)
        self._gone_again = False

    def watch_limit_s(self) -> int:
        """The time limit for the next watch, in seconds."""
        return self._random.randint(WATCH_MIN_S, WATCH_MAX_S)

    def after_list_error(self, error: ApiError) -> float:
        """How long to wait before the next list, in seconds."""
        return self._back_off.pause_s(min(error.retry_after_s or 0.0, PAUSE_MAX_S))

    def while_absent(self) -> float:
        """How long to wait before it is looked whether the kind is installed by now, in seconds."""
        self._back_off.reset()
        return ABSENT_LOOK_S * self._random.uniform(0.9, 1.1)

    def after_watch(self, ending: Ending, *, lived_s: float, brought_event: bool, error: ApiError | None = None) -> Next:
        """What to do after a watch.

        Args:
            lived_s: From its request to its end.
            brought_event: Whether it brought an event or a bookmark.
            error: What the server said, when it said something.
        """
        if is_steady(lived_s, brought_event):
            self._back_off.reset()
            self._gone_again = False
        if ending is Ending.TIMED_OUT:
            return Next(resume=True, pause_s=0.0)
        if ending is Ending.GONE and not self._gone_again:
            self._gone_again = True
            return Next(resume=False, pause_s=0.0)
        asked_s = 0.0 if error is None else min(error.retry_after_s or 0.0, PAUSE_MAX_S)
        return Next(resume=False, pause_s=self._back_off.pause_s(asked_s))


def is_steady(lived_s: float, brought_event: bool) -> bool:
    """Whether a watch proves that the server is well, so that pauses are short again."""
    return lived_s >= STEADY_S or (brought_event and lived_s >= STEADY_WITH_EVENT_S)


def proper_end(lived_s: float, limit_s: float) -> Ending:
    """What a watch that ended without an error died of."""
    return Ending.TIMED_OUT if lived_s >= IN_TIME_RATIO * limit_s else Ending.EARLY


def is_before(version: str, other: str) -> bool:
    """Whether a resource version is surely older than another one of the same resource.

    They are numbers that grow, for the kinds that are read here (KEP-5504, comparable resource version). They only go back
    when the server's store was restored from a backup; a watch from a version that is not reached yet brings nothing.
    """
    if not (version.isdecimal() and other.isdecimal()) or max(len(version), len(other)) > _VERSION_MAX_DIGITS:
        return False
    return int(version) < int(other)
