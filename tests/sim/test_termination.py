"""The styles of stopping, without sockets."""

import asyncio
from dataclasses import dataclass, field

import pytest

from epp.sim.config import SimConfig
from epp.sim.engines.base import AtStop, StopStyle
from epp.sim.engines.catalog import make_engine
from epp.sim.engines.names import ENGINE_SETTINGS
from epp.sim.termination import Termination


@dataclass
class FakeServer:
    """Writes down what it is told to do."""

    requests: int = 1
    connections: int = 1
    told: list[str] = field(default_factory=list)

    def close_listeners(self) -> None:
        self.told.append("close listeners")

    def close_kept_connections(self) -> None:
        self.told.append("close kept connections")

    def cut_connections(self) -> None:
        self.told.append("cut connections")

    def abort_requests(self) -> None:
        self.told.append("abort requests")

    def freeze(self) -> None:
        self.told.append("freeze")

    def open_requests(self) -> int:
        return self.requests

    def open_connections(self) -> int:
        return self.connections


REFUSE = ["close listeners", "close kept connections"]
FIRST_STEPS = {
    "vllm": [*REFUSE, "abort requests"],
    "nim": [*REFUSE, "abort requests"],
    "sglang": [],
    "trtllm-serve": REFUSE,
    "triton-tensorrt-llm": ["close listeners"],
    "llamacpp": [*REFUSE, "freeze"],
    "tgi": REFUSE,
    "ollama": [*REFUSE, "cut connections"],
    "lmdeploy": REFUSE,
}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("engine", ENGINE_SETTINGS)
async def test_every_engine_begins_to_stop_in_its_own_way_and_waits_for_requests(engine: str) -> None:
    server = FakeServer()
    style = make_engine(SimConfig(engine=engine)).stop_style()
    task = asyncio.create_task(Termination(server, style).run())
    await settle()

    assert server.told == FIRST_STEPS[engine]
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_with_a_timeout_vllm_touches_nothing_at_first() -> None:
    style = make_engine(SimConfig(shutdown_timeout_s=30)).stop_style()

    assert (style.at_stop, style.listener_closes, style.new_requests_fail, style.deadline_s) == (AtStop.FINISH, False, True, 30)


async def test_an_idle_server_is_done_at_once() -> None:
    await asyncio.wait_for(Termination(FakeServer(requests=0), StopStyle()).run(), 60)


async def test_a_server_that_waits_for_connections_is_not_done_while_one_is_open() -> None:
    server = FakeServer(requests=0, connections=1)
    task = asyncio.create_task(Termination(server, StopStyle(waits_for_connections=True)).run())
    await settle()
    assert not task.done()

    server.connections = 0

    await asyncio.wait_for(task, 60)


async def test_what_is_left_at_the_deadline_is_cut() -> None:
    server = FakeServer()

    await Termination(server, StopStyle(deadline_s=0.01)).run()

    assert server.told == [*REFUSE, "close listeners", "cut connections"]
