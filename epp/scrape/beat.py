"""Waking scrapers together.

Waking a process that sleeps costs as much as a small scrape (caches are cold, the kernel has to switch), so scrapes that are
due soon go along with the one that is due now. They stay independent: each sleeps for its own time, and one that hangs
holds up nobody.
"""

import asyncio
import heapq
from itertools import count

LATE_RATIO = 0.15
"""A sleep may last longer by this part of its length, to end together with another one; it never ends early."""
TOGETHER_MAX = 8
"""So many wake at once; more would hold up the requests that come meanwhile."""


class Beat:
    """A sleep for many tasks with few wake-ups of the process."""

    def __init__(self) -> None:
        self._sleepers: list[tuple[float, int, float, asyncio.Future[None]]] = []
        self._numbers = count()
        self._timer: asyncio.Handle | None = None
        self._timer_at_s = 0.0  # uvloop's handles cannot be asked

    async def sleep(self, pause_s: float) -> None:
        """Sleep for `pause_s`, or up to `LATE_RATIO` of it more."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        due_s = now_s + pause_s * (1.0 + LATE_RATIO)
        future = loop.create_future()
        heapq.heappush(self._sleepers, (due_s, next(self._numbers), now_s + pause_s, future))
        if self._timer is None or due_s < self._timer_at_s:
            self._set_timer(loop)
        await future

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sleepers:
            self._timer_at_s = self._sleepers[0][0]
            self._timer = loop.call_at(self._timer_at_s, self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_s = loop.time()
        woken = 0
        sleepers = self._sleepers
        while sleepers and woken < TOGETHER_MAX and (sleepers[0][2] <= now_s or sleepers[0][3].done()):
            future = heapq.heappop(sleepers)[3]
            if not future.done():  # a task that was cancelled in its sleep
                future.set_result(None)
                woken += 1
        self._set_timer(loop)
