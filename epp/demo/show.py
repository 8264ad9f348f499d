"""The demo from start to end."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from epp.clock import Clock
from epp.demo.acts import Acts
from epp.demo.client import Client
from epp.demo.fleet import DRAINED, FLEET, MODEL
from epp.demo.places import curl_lines, place_lines
from epp.demo.progress import Screen
from epp.demo.report import report
from epp.demo.snapshots import Snapshots
from epp.demo.stage import Stage
from epp.demo.tally import Crash, Drain, Tally, complaints
from epp.demo.traffic import plan_traffic
from epp.errors import EppError

T = TypeVar("T")

DRAIN_AT_RATIO = 0.3
CRASH_AT_RATIO = 0.6
"""When the events begin, as parts of the time in which requests are sent."""
DOWN_S = 3.0
"""How long the crashed server is away; in a short demo an eighth of the traffic's time."""
LAST_ANSWERS_S = 2.5
"""Set aside at the end for the requests that still run, and for stopping."""
TRAFFIC_RATIO = 0.6
"""On a machine where starting takes long, the traffic still has this part of the time that was asked for."""
_LOOK_S = 0.25


class InterruptedDemoError(EppError):
    """A signal came before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a user can choose.

    Attributes:
        total_s: Length of the whole demo; it lasts longer only if starting, the drain or the restart take long.
        seed: Of the traffic and the answers.
        keep: Leave everything running after the report, until a signal.
    """

    total_s: float
    seed: int
    keep: bool


class Show:
    """One demo.

    Args:
        screen: Where progress goes.
        write: Takes lines for people: where things are, and the report.
    """

    def __init__(self, choices: Choices, *, screen: Screen, write: Callable[[str], None], clock: Clock) -> None:
        self._choices = choices
        self._screen = screen
        self._write = write
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._good: bool | None = None

    async def run(self) -> bool:
        """The whole demo; True if it showed what it is to show. Every process has ended when it returns or raises.

        Raises:
            EppError: Something did not start or ended on its own, or a signal came before the report.
        """
        stop = asyncio.Event()
        with _signals_set(stop):
            playing = asyncio.create_task(self._play())
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                playing.cancel()
                stopping.cancel()
                await asyncio.wait((playing, stopping))
                self._screen.close()
            if not playing.cancelled():
                playing.result()
        if self._good is None:
            raise InterruptedDemoError("demo: stopped by a signal before its end; everything it had started has ended")
        return self._good

    async def _play(self) -> None:
        self._write(f"Starting {len(FLEET)} simulated model servers, the endpoint picker and Envoy ...")
        async with Stage(seed=self._choices.seed, say=self._say) as stage:
            for line in place_lines(stage):
                self._write(line)
            async with Client(stage.envoy_url, model=MODEL, clock=self._clock) as client:
                await self._play_on(stage, client)

    async def _play_on(self, stage: Stage, client: Client) -> None:
        tally = Tally()
        drain, crash = await _unwrapped(self._traffic(stage, client, tally))
        times = await stage.pages.pick_times()
        self._screen.close()
        self._write("")
        for line in report(tally, drain, crash, times, FLEET):
            self._write(line)
        self._good = not complaints(tally, drain, crash)
        if self._choices.keep:
            await _unwrapped(self._keep(stage, client, stopped=drain.server))

    async def _traffic(self, stage: Stage, client: Client, tally: Tally) -> tuple[Drain, Crash]:
        """Requests all the time, and the two events at their times."""
        began_s = self._clock.monotonic_s()
        total_s = self._choices.total_s
        length_s = max(TRAFFIC_RATIO * total_s, total_s - LAST_ANSWERS_S - (began_s - self._began_s))
        acts = Acts(stage, tally, streams_on=client.streams_on, clock=self._clock, say=self._say)
        snapshots = Snapshots(stage, client, tally, acts, clock=self._clock, began_s=self._began_s)
        no_more = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            driving = group.create_task(client.drive(plan_traffic(self._choices.seed), tally.add, no_more))
            watching = group.create_task(snapshots.show_on(self._screen))
            self._say(f"requests begin, about 30 a second; {DRAINED} will drain, and later another server will crash")
            await self._until(began_s + DRAIN_AT_RATIO * length_s)
            drain = await acts.drain(DRAINED)
            await self._until(began_s + CRASH_AT_RATIO * length_s)
            crash = await acts.crash(down_s=round(min(DOWN_S, length_s / 8), 1))
            await self._until(began_s + length_s)
            no_more.set()
            self._say(f"no more requests are sent; {client.open_requests} are still running")
            await driving
            watching.cancel()
        return drain, crash

    async def _keep(self, stage: Stage, client: Client, *, stopped: str) -> NoReturn:
        """Go on with traffic that nobody counts."""
        for line in curl_lines(stage):
            self._write(line)
        plan = plan_traffic(self._choices.seed + 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.drive(plan, lambda _: None, asyncio.Event()))
            for _ in itertools.count():
                stage.check_alive(stopped)
                await asyncio.sleep(_LOOK_S)
        raise AssertionError("expected to be cancelled")

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(at_s - self._clock.monotonic_s())

    def _say(self, text: str) -> None:
        self._screen.say(self._clock.monotonic_s() - self._began_s, text)


async def _unwrapped(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work with a TaskGroup in it; an error of ours comes out as itself and not in a group."""
    try:
        return await work
    except ExceptionGroup as group:
        ours, others = group.split(EppError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None


def _first(group: ExceptionGroup[EppError]) -> EppError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


@contextlib.contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP set the event, and do nothing else; a SIGHUP that `nohup` turned off stays so."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
