"""Looks at the running demo at a steady pace."""

import asyncio
from typing import NoReturn

from epp.clock import Clock
from epp.demo.acts import Acts
from epp.demo.client import Client
from epp.demo.fleet import ServerPlan
from epp.demo.picker_pages import PagesError, PoolEntry
from epp.demo.progress import Screen, ServerLine, Snapshot
from epp.demo.stage import Stage
from epp.demo.tally import Tally, quantile


class Snapshots:
    """Makes snapshots from what clients saw and what the picker says."""

    def __init__(self, stage: Stage, client: Client, tally: Tally, acts: Acts, *, clock: Clock, began_s: float) -> None:
        """`began_s` is when the demo began."""
        self._stage = stage
        self._client = client
        self._tally = tally
        self._acts = acts
        self._clock = clock
        self._began_s = began_s

    async def show_on(self, screen: Screen) -> NoReturn:
        """Show one snapshot every `screen.every_s`, and watch that every process lives.

        Raises:
            EppError: A process has ended that should run.
        """
        ended, at_s = 0, self._clock.monotonic_s()
        while True:
            await asyncio.sleep(screen.every_s)
            self._stage.check_alive(*self._acts.stopped, *self._acts.down)
            try:
                pool = await self._stage.pages.pool()
            except PagesError:
                continue  # busy, or the next look finds the process ended
            now_s = self._clock.monotonic_s()
            screen.show(self._snapshot(pool, now_s, (len(self._tally) - ended) / (now_s - at_s)))
            ended, at_s = len(self._tally), now_s

    def _snapshot(self, pool: dict[str, PoolEntry], now_s: float, finished_per_s: float) -> Snapshot:
        return Snapshot(
            at_s=now_s - self._began_s,
            servers=[self._line(server.plan, pool.get(server.plan.name)) for server in self._stage.servers.values()],
            finished_per_s=finished_per_s,
            open_requests=self._client.open_requests,
            answered=len(self._tally.answered()),
            failed=len(self._tally.failed()),
        )

    def _line(self, plan: ServerPlan, entry: PoolEntry | None) -> ServerLine:
        answered = self._tally.answered(plan.name)
        return ServerLine(
            name=plan.name,
            engine=plan.engine,
            state=self._state(plan.name, entry),
            in_flight=0 if entry is None else entry.in_flight_requests,
            answered=len(answered),
            p50_s=quantile((outcome.duration_s for outcome in answered), 0.5),
        )

    def _state(self, name: str, entry: PoolEntry | None) -> str:
        if name in self._acts.stopped:
            return "ended"
        if name in self._acts.down:
            return "down"
        if entry is None:
            return "unknown"
        if entry.state == "ready" and entry.demoted_because is not None:
            return "probing"
        return entry.state
