"""What happens to the pool while traffic runs: one server drains and ends, another one crashes and comes back."""

import asyncio
from collections import Counter
from collections.abc import Callable

from epp.clock import Clock
from epp.demo.picker_pages import PagesError, PoolEntry
from epp.demo.stage import Stage
from epp.demo.tally import Crash, Drain, Tally, Window

DRAIN_PATIENCE_S = 20.0
"""A drain that lasts longer than this has failed."""
TERM_PATIENCE_S = 10.0
SETTLE_S = 1.0
"""Failures this long after an event still count as its failures."""
RECOVERY_PATIENCE_S = 8.0
_POLL_S = 0.05
_NOTICE_S = 0.3
"""How long it may take to notice that a process has ended."""


class Acts:
    """The two events.

    Attributes:
        stopped: Servers that ended as they should, by name.
        down: Servers that are killed and not back.
    """

    def __init__(
        self, stage: Stage, tally: Tally, *, streams_on: Counter[str], clock: Clock, say: Callable[[str], None]
    ) -> None:
        """`say` is told of each step; `streams_on` is how many streams clients read from each server now."""
        self._stage = stage
        self._tally = tally
        self._streams_on = streams_on
        self._clock = clock
        self._say = say
        self.stopped: set[str] = set()
        self.down: set[str] = set()

    async def drain(self, name: str) -> Drain:
        """Drain the server in the right order: no new requests, wait until idle, SIGTERM, remove the entry."""
        began_s = self._clock.monotonic_s()
        in_flight, streams = await self._in_flight(name), self._streams_on[name]
        self._stage.drain(name)
        self._say(
            f"drain: {name} is now `draining: true` in the endpoints file; {in_flight} requests run on it, {streams} as streams"
        )
        idle_after_s = await self._idle_after_s(name, began_s)
        if idle_after_s is None:
            self._say(f"drain: {name} is not idle after {DRAIN_PATIENCE_S:g} s")
            return Drain(server=name, window=Window(began_s, self._clock.monotonic_s()),
                         idle_after_s=None, process_ended="still runs")  # fmt: skip
        self._say(f"drain: nothing is in flight on {name} after {idle_after_s:.1f} s; SIGTERM to its process")
        self.stopped.add(name)
        ended = await self._stage.servers[name].child.terminate(TERM_PATIENCE_S)
        self._stage.remove(name)
        self._say(f"drain: the process ended with {ended}; {name} is removed from the endpoints file")
        await asyncio.sleep(SETTLE_S)
        return Drain(server=name, window=Window(began_s, self._clock.monotonic_s()),
                     idle_after_s=idle_after_s, process_ended=ended)  # fmt: skip

    async def crash(self, *, down_s: float) -> Crash:
        """Kill the busiest server, start it again after `down_s`, and wait until it answers."""
        name, in_flight = await self._busiest()
        server = self._stage.servers[name]
        self.down.add(name)
        began_s = self._clock.monotonic_s()
        server.child.kill()
        self._say(f"crash: SIGKILL to {name} while {in_flight} requests run on it; it comes back in {down_s:g} s")
        await server.child.gone()
        await asyncio.sleep(down_s)
        await server.start()
        await server.listening()
        self.down.discard(name)
        restarted_s = self._clock.monotonic_s()
        self._say(f"crash: {name} runs again, on the same port")
        answered_s = await self._answered_at_s(name, restarted_s)
        if answered_s is None:
            self._say(f"crash: {name} has not answered {RECOVERY_PATIENCE_S:g} s after its start")
        else:
            self._say(f"crash: {name} has answered again, {answered_s - restarted_s:.1f} s after its start")
            await asyncio.sleep(SETTLE_S)
        return Crash(
            server=name,
            window=Window(began_s, self._clock.monotonic_s()),
            in_flight_at_kill=in_flight,
            restarted_after_s=restarted_s - began_s,
            answered_after_s=None if answered_s is None else answered_s - began_s,
        )

    async def _idle_after_s(self, name: str, began_s: float) -> float | None:
        while (passed_s := self._clock.monotonic_s() - began_s) < DRAIN_PATIENCE_S:
            entry = (await self._pool()).get(name)
            # Not before the picker knows: until then it may still choose this server.
            if entry is not None and entry.state == "draining" and entry.in_flight_requests == 0:
                return passed_s
            await asyncio.sleep(_POLL_S)
        return None

    async def _answered_at_s(self, name: str, since_s: float) -> float | None:
        while (now_s := self._clock.monotonic_s()) < since_s + RECOVERY_PATIENCE_S:
            if any(outcome.began_at_s >= since_s for outcome in self._tally.answered(name)):
                return now_s
            await asyncio.sleep(_POLL_S)
        return None

    async def _in_flight(self, name: str) -> int:
        entry = (await self._pool()).get(name)
        return 0 if entry is None else entry.in_flight_requests

    async def _busiest(self) -> tuple[str, int]:
        pool = await self._pool()
        running = {
            name: pool[name].in_flight_requests for name in self._stage.servers if name in pool and name not in self.stopped
        }
        name = max(running, key=running.__getitem__)
        return name, running[name]

    async def _pool(self) -> dict[str, PoolEntry]:
        try:
            return await self._stage.pages.pool()
        except PagesError:
            await asyncio.sleep(_NOTICE_S)
            self._stage.check_alive(*self.stopped, *self.down)
            raise
