"""Time comes in through the constructor, so that tests need not wait for it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC, for people to read."""
        ...


class SystemClock:
    """The clocks of this process."""

    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)
