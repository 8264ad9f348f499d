"""What a metrics page says of the engine: not what is, but what was when the engine last brought its gauges up to date."""

import asyncio
from collections.abc import Callable

from epp.clock import Clock
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import Refresh


class Gauges:
    """The published state.

    Args:
        refresh: When, apart from every `refresh_s` seconds, the state is published.
        refresh_s: None is not by time.
        read: The state as it is.
        clock: For the time of publication.
    """

    def __init__(self, refresh: Refresh, refresh_s: float | None, read: Callable[[], EngineState], clock: Clock) -> None:
        self._refresh = refresh
        self._refresh_s = refresh_s
        self._read = read
        self._clock = clock
        self.state: EngineState | None = None
        self.published_wall_s = 0.0

    def publish(self) -> None:
        """Bring the gauges up to date."""
        self.state = self._read()
        self.published_wall_s = self._clock.wall_s()

    def before_read(self) -> None:
        """A page is about to be made."""
        if self._refresh is Refresh.ALWAYS:
            self.publish()

    def after_change(self, *, prefilled: bool, finished: bool, idle: bool) -> None:
        """Requests got their first token or finished; the engine may have become idle."""
        if (self._refresh is Refresh.ON_FINISH and finished) or (
            self._refresh is Refresh.ON_PREFILL_AND_IDLE and (prefilled or idle)
        ):
            self.publish()

    async def run(self) -> None:
        """Publish by time; never returns."""
        if self._refresh_s is None or self._refresh is Refresh.ALWAYS:
            await asyncio.Event().wait()
            return
        while True:
            self.publish()
            await asyncio.sleep(self._refresh_s)
