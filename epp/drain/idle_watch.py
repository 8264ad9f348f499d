"""When a model server that drains may be stopped: samples in, "go on" or "done" out. No input or output here.

Two kinds of sources say how busy it is: the endpoint pickers, by their own count, and the engine's own page. `script.sh` holds
the same rules for images without Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """A number of requests, ≥ 0."""

    requests: float


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """It did not answer in time, so it is probably busy."""

    why: str


@dataclass(frozen=True, slots=True)
class Silent:
    """It says nothing of requests: unreachable, not allowed, switched off, unreadable."""

    why: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The model server's port refuses connections.

    When the page was there before, the server has ended, whatever an endpoint picker still counts. Otherwise it may listen
    somewhere else, and counts are believed.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The endpoint picker is ready and does not know this endpoint."""

    why: str


PageAnswer = Told | NoAnswer | Silent | Gone
PickerAnswer = Told | NoAnswer | Silent | Unknown


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do after a sample.

    Attributes:
        done: Whether the wait is over.
        sentence: Why, or what it waits for.
    """

    done: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long to wait, and what is believed.

    Attributes:
        min_wait_s: Not done before; routers need the time to see that the endpoint drains.
        idle_samples: So many idle samples in a row end the wait, ≥ 1.
        page_lag_s: So long the page may go on showing an earlier state: idle samples must span more than this.
        page_freezes: The page may show idle for as long as one request takes, so an idle page is believed only when it has
            shown requests before.
    """

    min_wait_s: float
    idle_samples: int
    page_lag_s: float = 0.0
    page_freezes: bool = False


UNKNOWN_SAMPLES = 2
"""An endpoint picker that has just started may not have heard of an endpoint yet; one that says so twice means it."""


class IdleWatch:
    """Looks at one sample after another, of one model server."""

    def __init__(self, waits: Waits, pickers: int) -> None:
        """Args:
        pickers: How many picker counts each sample has.
        """
        self._waits = waits
        self._counts = [_PickerCount() for _ in range(pickers)]
        self._page = _PageMemory()
        self._idle = 0
        self._idle_since_s = 0.0

    def take(self, at_s: float, page: PageAnswer, pickers: Sequence[PickerAnswer]) -> Verdict:
        """Judge a sample.

        Args:
            at_s: When it was begun, in seconds since the wait began; never less than in the sample before.
            page: What the engine's page said.
            pickers: What each endpoint picker said, in the same order each time.
        """
        for count, answer in zip(self._counts, pickers, strict=True):
            count.take(answer)
        self._page.take(page)
        if at_s < self._waits.min_wait_s:
            return Verdict(False, f"waits at least {self._waits.min_wait_s:g} s")
        busy = self._busy()
        if busy:
            self._idle = 0
            return Verdict(False, busy)
        if not self._page.gone and not self._page.spoke and not any(count.known for count in self._counts):
            return Verdict(True, "neither an endpoint picker nor the engine tells of requests, so only the minimum was waited")
        if self._idle == 0:
            self._idle_since_s = at_s
        self._idle += 1
        span_s = self._waits.page_lag_s if self._page.spoke and not self._page.gone else 0.0
        if self._idle >= self._waits.idle_samples and (span_s == 0.0 or at_s - self._idle_since_s > span_s):
            return Verdict(True, "nothing listens at the model server's port" if self._page.gone else "idle")
        return Verdict(False, "idle so far")

    def _busy(self) -> str:
        """Why it cannot be stopped; empty when nothing speaks against it."""
        if self._page.gone and self._page.spoke:
            return ""
        if self._page.busy:
            return "busy by the engine's page"
        if any(count.requests > 0 for count in self._counts):
            return "busy by the endpoint picker's count"
        proven = self._page.saw_load or any(count.known for count in self._counts)
        if self._page.spoke and self._waits.page_freezes and not proven:
            return "the engine's page may stand still while a request runs, and no endpoint picker tells more"
        return ""


class _PickerCount:
    """What one endpoint picker counts; its last count holds while it is silent."""

    def __init__(self) -> None:
        self.known = False
        self.requests = 0.0
        self._unknown = 0

    def take(self, answer: PickerAnswer) -> None:
        self._unknown = self._unknown + 1 if isinstance(answer, Unknown) else 0
        if isinstance(answer, Told):
            self.known, self.requests = True, answer.requests
        elif self._unknown >= UNKNOWN_SAMPLES:
            self.known = True  # a count that was told before holds: the requests may still run


class _PageMemory:
    def __init__(self) -> None:
        self.spoke = False
        self.saw_load = False
        self.busy = False
        self.gone = False

    def take(self, answer: PageAnswer) -> None:
        self.gone = isinstance(answer, Gone)
        match answer:
            case Told(requests):
                self.spoke = True
                self.saw_load = self.saw_load or requests > 0
                self.busy = requests > 0
            case NoAnswer():
                self.spoke = self.busy = True
            case Silent():
                self.busy = self.spoke
            case Gone():
                self.busy = False
