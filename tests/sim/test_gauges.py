"""When gauges are brought up to date."""

import asyncio

import pytest

from epp.sim.engine_model import EngineModel
from epp.sim.engines.base import Refresh
from epp.sim.gauges import Gauges
from epp.sim.job import Job
from epp.sim.limits import EngineLimits
from tests.fakes.clock import FakeClock

LIMITS = EngineLimits(
    slots=4,
    max_queue_requests=None,
    prefill_tokens_per_s=100,
    decode_tokens_per_s=1,
    kv_blocks=100,
    kv_block_tokens=10,
    max_lora=1,
)


class Bench:
    """Gauges over a model with a clock that stands still."""

    def __init__(self, refresh: Refresh, refresh_s: float | None = None) -> None:
        self.clock = FakeClock()
        self.model = EngineModel(LIMITS)
        self.gauges = Gauges(refresh, refresh_s, lambda: self.model.state(self.clock.now_s), self.clock)

    def add(self) -> None:
        self.model.submit(Job(prompt_tokens=100, output_tokens=50), self.clock.now_s)

    @property
    def shown(self) -> int | None:
        return None if self.gauges.state is None else self.gauges.state.running_requests


def test_gauges_that_are_always_fresh_are_made_for_each_page() -> None:
    bench = Bench(Refresh.ALWAYS)
    for running in range(3):
        bench.gauges.before_read()
        assert bench.shown == running
        bench.add()


@pytest.mark.parametrize(
    ("refresh", "change", "shown"),
    [
        (Refresh.ON_FINISH, {"prefilled": True, "finished": False, "idle": False}, None),
        (Refresh.ON_FINISH, {"prefilled": False, "finished": True, "idle": False}, 1),
        (Refresh.ON_PREFILL_AND_IDLE, {"prefilled": True, "finished": False, "idle": False}, 1),
        (Refresh.ON_PREFILL_AND_IDLE, {"prefilled": False, "finished": True, "idle": False}, None),
        (Refresh.ON_PREFILL_AND_IDLE, {"prefilled": False, "finished": True, "idle": True}, 1),
        (Refresh.NEVER, {"prefilled": True, "finished": True, "idle": True}, None),
    ],
)
def test_other_gauges_wait_for_their_occasion(refresh: Refresh, change: dict[str, bool], shown: int | None) -> None:
    bench = Bench(refresh)
    bench.add()

    bench.gauges.before_read()
    bench.gauges.after_change(**change)

    assert bench.shown == shown


async def test_gauges_are_brought_up_to_date_by_time_and_know_when_that_was() -> None:
    bench = Bench(Refresh.NEVER, refresh_s=0.01)
    task = asyncio.create_task(bench.gauges.run())
    await asyncio.sleep(0)
    assert bench.shown == 0
    bench.add()
    bench.clock.advance(7)
    async with asyncio.timeout(60):
        while bench.shown == 0:
            await asyncio.sleep(0.001)

    assert bench.gauges.published_wall_s == bench.clock.wall_s()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
