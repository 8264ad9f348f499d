"""Where the process stands between start and exit; health, readiness and shutdown all read it here."""

from collections.abc import Callable
from enum import Enum

QUIET_S = 3.0
"""How long nothing may be open before the drain counts as finished.

Those who send here need time to see that this picker is not ready any more (a health check, an endpoint list): a stream
that comes a second after SIGTERM must still be answered.
"""


class Phase(Enum):
    """The phases of the process, in order."""

    STARTING = "starting"
    """Ports are open, the pool is not listed yet or the first scrape round has not ended."""
    SERVING = "serving"
    DRAINING = "draining"
    """SIGTERM came: not ready, alive, still answering until idle or `--drain-timeout`."""
    STOPPED = "stopped"


class Lifecycle:
    """The one owner of the phase. Listeners are called at each change, in the order they were added."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._listeners: dict[Callable[[Phase], None], None] = {}
        """Only the keys count. There is one for each health stream, so adding and removing must not walk through them."""

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def live(self) -> bool:
        """False only once the process has stopped serving."""
        return self._phase is not Phase.STOPPED

    @property
    def ready(self) -> bool:
        """Whether Envoy should send new streams here."""
        return self._phase is Phase.SERVING

    def on_change(self, listener: Callable[[Phase], None]) -> None:
        """Call `listener` with the new phase at each change from now on (once, however often it is added)."""
        self._listeners[listener] = None

    def forget(self, listener: Callable[[Phase], None]) -> None:
        """Do not call `listener` any more."""
        del self._listeners[listener]

    def enter(self, phase: Phase) -> None:
        """Go to `phase`. Going back is a bug; entering the same phase again does nothing."""
        order = list(Phase)
        if order.index(phase) < order.index(self._phase):
            raise ValueError(f"lifecycle: expected a phase after {self._phase.value}, found {phase.value}")
        if phase is self._phase:
            return
        self._phase = phase
        for listener in tuple(self._listeners):
            listener(phase)


class DrainWait:
    """Follows the number of open streams after SIGTERM."""

    def __init__(self, began_at_s: float, *, timeout_s: float) -> None:
        self._ends_at_s = began_at_s + timeout_s
        self._quiet_since_s = began_at_s

    def is_over(self, now_s: float, open_streams: int) -> bool:
        """Whether to close now. Call it every 0.1 s or more often."""
        if open_streams:
            self._quiet_since_s = now_s
        return now_s >= self._ends_at_s or now_s - self._quiet_since_s >= QUIET_S
