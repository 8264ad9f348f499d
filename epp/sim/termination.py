"""What happens between SIGTERM and exit, for every style of stopping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from epp.sim.engines.base import AtStop, StopStyle

LOOK_S = 0.005
"""How often is looked whether a stopping server is idle, where the engine has no pace of its own."""


class Stoppable(Protocol):
    """What a server can do about its end."""

    def close_listeners(self) -> None: ...

    def close_kept_connections(self) -> None: ...

    def cut_connections(self) -> None: ...

    def abort_requests(self) -> None: ...

    def freeze(self) -> None: ...

    def open_requests(self) -> int: ...

    def open_connections(self) -> int: ...


class Termination:
    """Stops one server in one style."""

    def __init__(self, server: Stoppable, style: StopStyle) -> None:
        self._server = server
        self.style = style

    async def run(self) -> None:
        """Returns when the process may exit."""
        server, style = self._server, self.style
        if style.listener_closes:
            server.close_listeners()
        if style.kept_connections_close:
            server.close_kept_connections()
        if style.at_stop is AtStop.ABORT:
            server.abort_requests()
        elif style.at_stop is AtStop.CUT:
            server.cut_connections()
        elif style.at_stop is AtStop.HANG:
            server.freeze()
        try:
            async with asyncio.timeout(style.deadline_s):
                await self._idle()
        except TimeoutError:
            server.close_listeners()
            server.cut_connections()

    async def _idle(self) -> None:
        if self.style.idle_check_s is None:
            await _until(self._is_idle, lambda: asyncio.sleep(LOOK_S))
        else:
            pace_s = self.style.idle_check_s
            await asyncio.sleep(pace_s)
            await _until(self._is_idle, lambda: asyncio.sleep(pace_s))

    def _is_idle(self) -> bool:
        if self._server.open_requests():
            return False
        return not self.style.waits_for_connections or not self._server.open_connections()


async def _until(condition: Callable[[], bool], pause: Callable[[], Awaitable[None]]) -> None:
    while not condition():
        await pause()
