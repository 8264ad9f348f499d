"""What people read about scrapes: one line when an endpoint's state changes, not one an attempt."""

from collections.abc import Sequence
from typing import Protocol

from epp.clock import Clock
from epp.pool.endpoint import Endpoint
from epp.scrape.reasons import Reason

FAILURES_TO_TELL = 3
"""A single lost scrape of a busy server is nothing to tell anybody."""
LINES_AT_ONCE = 3
SECONDS_PER_LINE = 30.0
"""So an endpoint that flaps makes at most five lines a minute; the last state is told as soon as there is room again."""

FAILING = "scrapes of an endpoint fail"
RECOVERED = "scrapes of an endpoint succeed again"
LACKING = "a metrics page lacks quantities"


class Log(Protocol):
    """The part of a structured logger that is used here: the event is a constant, the rest are fields."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


class ChangeLog:
    """Tells changes of one endpoint's scrapes.

    Attributes:
        failing: Why scrapes fail now; None while they succeed.
    """

    def __init__(self, log: Log, clock: Clock, endpoint: Endpoint) -> None:
        self.failing: Reason | None = None
        self._log = log
        self._clock = clock
        self._endpoint = endpoint
        self._told: Reason | None = None
        self._failures_in_row = 0
        self._lines_left = float(LINES_AT_ONCE)
        self._refilled_at_s = clock.monotonic_s()

    def succeeded(self) -> None:
        """A scrape was good."""
        self.failing = None
        self._failures_in_row = 0
        if self._told is not None and self._may_tell():
            self._log.info(RECOVERED, **self._who())
            self._told = None

    def failed(self, reason: Reason, sentence: str, *, with_stack: bool = False) -> None:
        """A scrape gave nothing.

        Args:
            with_stack: An exception is being handled, and it is a bug: tell where.
        """
        self.failing = reason
        self._failures_in_row += 1
        if reason is self._told or (self._failures_in_row < FAILURES_TO_TELL and not with_stack) or not self._may_tell():
            return
        self._told = reason
        tell = self._log.error if with_stack else self._log.warning
        tell(FAILING, reason=reason.value, detail=sentence, **self._who(), **({"exc_info": True} if with_stack else {}))

    def lacking(self, engine: str, quantities: Sequence[str]) -> None:
        """The page of `engine` lacks these quantities, which other versions of it give."""
        if quantities and self._may_tell():
            self._log.info(LACKING, engine=engine, quantities=list(quantities), **self._who())

    def _who(self) -> dict[str, object]:
        return {"endpoint": self._endpoint.address, "name": self._endpoint.spec.name}

    def _may_tell(self) -> bool:
        now_s = self._clock.monotonic_s()
        earned = (now_s - self._refilled_at_s) / SECONDS_PER_LINE
        self._lines_left = min(float(LINES_AT_ONCE), self._lines_left + earned)
        self._refilled_at_s = now_s
        if self._lines_left < 1.0:
            return False
        self._lines_left -= 1.0
        return True
