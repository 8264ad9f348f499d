"""Time that passes only when a test says so, for code that sleeps."""

import asyncio
import heapq
from itertools import count

from tests.fakes.clock import FakeClock

STEPS_TO_SETTLE = 30
"""Turns of the event loop after which every task that is not asleep has come to its next wait."""


class VirtualTime:
    """A clock and the sleeps on it.

    Attributes:
        clock: Moved by `advance`.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved on by `seconds`."""
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.clock.now_s + seconds, next(self._order), wake))
        await wake

    async def settle(self) -> None:
        """Let every task run to its next sleep."""
        for _ in range(STEPS_TO_SETTLE):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking every sleep on the way at its time."""
        end_s = self.clock.now_s + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self.clock.now_s, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)
                await self.settle()
        self.clock.now_s = end_s
