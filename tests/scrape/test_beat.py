"""Waking scrapers together, on the event loop's own clock."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from epp.scrape.beat import LATE_RATIO, TOGETHER_MAX, Beat


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time a test moves; timers fire when their time has come."""

    now_s = 1000.0
    wakes = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., object], *args: object, **kwargs: object) -> asyncio.TimerHandle:
        def fired(*inner: object) -> None:
            self.wakes += 1
            callback(*inner)

        return super().call_at(when, fired, *args, **kwargs)  # type: ignore[arg-type]


async def move_to(loop: StillLoop, now_s: float) -> None:
    loop.now_s = now_s
    for _ in range(6):
        await asyncio.sleep(0)


def run(scene: Callable[[StillLoop, Beat], object]) -> None:
    loop = StillLoop()
    try:
        loop.run_until_complete(scene(loop, Beat()))  # type: ignore[arg-type]
    finally:
        loop.close()


def test_sleeps_that_end_soon_after_one_another_end_together() -> None:
    async def scene(loop: StillLoop, beat: Beat) -> None:
        tasks = [asyncio.ensure_future(beat.sleep(pause_s)) for pause_s in (0.050, 0.052, 0.055, 0.057)]
        await move_to(loop, 1000.0)
        await move_to(loop, 1000.0501)
        assert not any(t.done() for t in tasks)
        await move_to(loop, 1000.0 + 0.050 * (1 + LATE_RATIO) + 0.0001)
        assert all(t.done() for t in tasks)
        assert loop.wakes == 1

    run(scene)


def test_no_sleep_ends_early_or_later_than_its_part() -> None:
    async def scene(loop: StillLoop, beat: Beat) -> None:
        short = asyncio.ensure_future(beat.sleep(0.1))
        long = asyncio.ensure_future(beat.sleep(1.0))
        await move_to(loop, 1000.0)
        await move_to(loop, 1000.0 + 0.1 * (1 + LATE_RATIO) + 0.001)
        assert short.done()
        await move_to(loop, 1000.999)
        assert not long.done()
        await move_to(loop, 1000.0 + 1.0 * (1 + LATE_RATIO) + 0.001)
        assert long.done()

    run(scene)


def test_many_wake_in_turns_so_that_requests_come_between() -> None:
    async def scene(loop: StillLoop, beat: Beat) -> None:
        tasks = [asyncio.ensure_future(beat.sleep(0.5)) for _ in range(3 * TOGETHER_MAX)]
        await move_to(loop, 1000.0)
        loop.now_s = 1000.6
        seen: list[int] = []
        while not all(t.done() for t in tasks):
            await asyncio.sleep(0)
            seen.append(sum(t.done() for t in tasks))
        assert TOGETHER_MAX in seen
        assert 2 * TOGETHER_MAX in seen

    run(scene)


def test_a_sleeper_that_was_cancelled_holds_up_nobody() -> None:
    async def scene(loop: StillLoop, beat: Beat) -> None:
        gone = asyncio.ensure_future(beat.sleep(0.05))
        kept = asyncio.ensure_future(beat.sleep(0.06))
        await move_to(loop, 1000.0)
        gone.cancel()
        await move_to(loop, 1000.08)
        assert kept.done()
        with pytest.raises(asyncio.CancelledError):
            await gone

    run(scene)


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_any_mixture_of_short_and_long_sleeps_ends(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """On real loops, whose timers differ: a sleep may be over before the next one begins."""

    async def scene() -> None:
        beat = Beat()

        async def sleeper(number: int) -> None:
            for _ in range(20):
                await beat.sleep(number % 4 * 0.0003)

        async with asyncio.timeout(60):
            await asyncio.gather(*(sleeper(number) for number in range(40)))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())
