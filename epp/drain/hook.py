"""The wait of the preStop hook: takes samples until `IdleWatch` says that the server may be stopped, or time is up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from epp.clock import Clock
from epp.drain.idle_watch import Gone, IdleWatch, NoAnswer, PageAnswer, PickerAnswer, Silent, Told, Unknown, Waits
from epp.drain.plan import DrainPlan


class Picker(Protocol):
    """One endpoint picker, about one endpoint."""

    @property
    def name(self) -> str: ...

    async def sample(self, timeout_s: float) -> PickerAnswer:
        """Say again that the endpoint drains, and ask for its count, in at most `timeout_s`."""
        ...


class Page(Protocol):
    """The engine's page."""

    async def sample(self, timeout_s: float) -> PageAnswer:
        """Read it, in at most `timeout_s`."""
        ...


class DrainHook:
    """Waits until the model server is idle."""

    def __init__(
        self,
        plan: DrainPlan,
        pickers: Sequence[Picker],
        page: Page,
        say: Callable[[str], None],
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Args:
        say: Takes each line for the log.
        """
        self._plan = plan
        self._pickers = pickers
        self._page = page
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Wait; returns after `max_wait_s` at the latest."""
        plan = self._plan
        began_s = self._clock.monotonic_s()
        waits = Waits(
            min_wait_s=plan.min_wait_s,
            idle_samples=plan.idle_samples,
            page_lag_s=plan.page.lag_s,
            page_freezes=plan.page.freezes,
        )
        watch = IdleWatch(waits, len(self._pickers))
        whom = f", tells {', '.join(picker.name for picker in self._pickers)}" if self._pickers else ""
        self._say(f"{plan.engine} drains{whom}; waits {plan.min_wait_s:g} to {plan.max_wait_s:g} s")
        while True:
            at_s = self._clock.monotonic_s() - began_s
            left_s = plan.max_wait_s - at_s
            if left_s <= 0:
                self._say(f"gives up after {at_s:.1f} s, {self._said.get('verdict', 'nothing is known')}")
                return
            limit_s = min(plan.call_s, left_s)
            page, counts = await asyncio.gather(
                self._page.sample(limit_s), asyncio.gather(*(picker.sample(limit_s) for picker in self._pickers))
            )
            self._say_changes(page, counts)
            verdict = watch.take(at_s, page, counts)
            now_s = self._clock.monotonic_s() - began_s
            if verdict.done:
                self._say(f"done after {now_s:.1f} s: {verdict.sentence}")
                return
            self._said["verdict"] = verdict.sentence
            await self._sleep(max(0.0, min(at_s + plan.interval_s, plan.max_wait_s) - now_s))

    def _say_changes(self, page: PageAnswer, counts: Sequence[PickerAnswer]) -> None:
        self._say_change("the engine's page", page)
        for picker, answer in zip(self._pickers, counts, strict=True):
            self._say_change(picker.name, answer)

    def _say_change(self, who: str, answer: PageAnswer | PickerAnswer) -> None:
        """Say what a source says when it is of another kind than before; numbers alone are no change."""
        kind, sentence = _described(answer)
        if self._said.get(who) != kind:
            self._said[who] = kind
            self._say(f"{who}: {sentence}")


def _described(answer: PageAnswer | PickerAnswer) -> tuple[str, str]:
    match answer:
        case Told(0.0):
            return "idle", "no requests"
        case Told(requests):
            return "busy", f"{requests:g} requests"
        case NoAnswer(why) | Silent(why) | Gone(why) | Unknown(why):
            return why, why
