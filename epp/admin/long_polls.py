"""Requests that wait for an endpoint to become idle."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from epp.lifecycle import Lifecycle, Phase
from epp.pool.endpoint import Endpoint
from epp.pool.state import PoolState

T = TypeVar("T")

MAX_POLLS = 20
"""Of each kind at once. With those of other replicas this leaves 24 of the port's 64 connections to probes and readers."""


class LongPolls:
    """Waits that end by an event, by time, or because the process begins to shut down. A limited number waits at once."""

    def __init__(self, pool: PoolState, lifecycle: Lifecycle, *, most: int = MAX_POLLS) -> None:
        self._pool = pool
        self._most = most
        self._waiting = {True: 0, False: 0}
        self._stopping = asyncio.Event()
        lifecycle.on_change(self._changed)
        self._changed(lifecycle.phase)

    @property
    def stopping(self) -> bool:
        """The process shuts down: nobody waits any more."""
        return self._stopping.is_set()

    @contextmanager
    def place(self, *, forwarded: bool) -> Iterator[bool]:
        """Take one of the places of this kind while the block runs; False when there is none: do not wait then."""
        free = self._waiting[forwarded] < self._most
        self._waiting[forwarded] += free
        try:
            yield free
        finally:
            self._waiting[forwarded] -= free

    async def wait_idle(self, endpoint: Endpoint, wait_s: float) -> None:
        """Until nothing runs on `endpoint`, at most `wait_s`."""
        if not endpoint.in_flight_requests or wait_s <= 0:
            return
        idle = asyncio.Event()
        self._pool.watch_idle(endpoint, idle.set)
        try:
            await self.unless_stopping(idle.wait(), wait_s)
        finally:
            self._pool.unwatch_idle(endpoint, idle.set)

    async def pause(self, wait_s: float) -> None:
        """Wait so long, or until the process shuts down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()

    async def unless_stopping(self, waiting: Coroutine[Any, Any, T], wait_s: float | None = None) -> T | None:
        """What `waiting` gives; None when `wait_s` is over or the process shuts down before."""
        task = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()

    def _changed(self, phase: Phase) -> None:
        if phase in {Phase.DRAINING, Phase.STOPPED}:
            self._stopping.set()
