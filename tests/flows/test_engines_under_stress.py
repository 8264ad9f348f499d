"""Simulated engines that fail or refuse in their own manner while nobody tells the picker, and what that costs.

Envoy tries each request once here (ORIGINAL_DST), so what the picker does wrong is lost.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from epp.pool.health import FAILURES_TO_DEMOTE, PROBE_PAUSE_S
from tests.fakes.http1_client import Answer
from tests.flows.harness import PATIENCE_S, Setting, start_pair, wait_until
from tests.sim.process import SimProcess, sim_process

CLIENTS = 16
SLOW = ("--decode-rate", "10", "--prefill-rate", "100000")


def body(max_tokens: int, *, stream: bool = False) -> bytes:
    """A completion of exactly so many tokens."""
    ask = {"model": "sim-model", "prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    return msgspec.json.encode(ask)


SHORT = body(3)
OLD = body(150, stream=True)
"""Takes 15 s, so that the server is still there when the new ones are counted."""
WATCH_S = 3.0


def endpoint_of(sim: SimProcess) -> str:
    return sim.url.removeprefix("http://")


@asynccontextmanager
async def start_sims(count: int, *arguments: str) -> AsyncIterator[tuple[Setting, list[SimProcess]]]:
    """So many simulated servers behind a picker and an Envoy."""
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(sim_process(*arguments)) for _ in range(count)]
        flags = [word for sim in sims for word in ("--endpoint", endpoint_of(sim))]
        yield await stack.enter_async_context(start_pair([], *flags)), sims


async def answers_until(scene: Setting, is_enough: Callable[[list[Answer]], bool], request: bytes) -> list[Answer]:
    """What clients are answered, each of which asks again at once, until it is enough."""
    answers: list[Answer] = []

    async def client() -> None:
        while not is_enough(answers):
            answers.append(await scene.fetch("/v1/completions", body=request))
            if answers[-1].status != 200:
                await asyncio.sleep(0.02)  # as clients do

    await asyncio.wait_for(asyncio.gather(*(client() for _ in range(CLIENTS))), 4 * PATIENCE_S)
    return answers


def servers(answers: list[Answer]) -> Counter[str | None]:
    """Who gave the good answers."""
    return Counter(answer.head.get("x-sim-name") for answer in answers if answer.status == 200)


async def test_a_vllm_that_drains_untold_costs_next_to_nothing_and_its_successor_has_its_share() -> None:
    """It answers 500 in 5 ms to all that is new, finishes what it has with 200, looks ever idler, and ends."""
    async with start_sims(3, "--engine", "vllm", *SLOW, "--shutdown-timeout", "300s") as (scene, sims):
        draining = sims[0]
        async with AsyncExitStack() as stack:
            old = [asyncio.create_task(scene.fetch("/v1/completions", body=OLD)) for _ in range(9)]
            for task in old:
                stack.callback(task.cancel)

            async def holds_all() -> bool:
                pool = await scene.epp.pool()
                return all(pool[endpoint_of(sim)]["running_requests"] == 3 for sim in sims)

            await wait_until(holds_all, "each server to hold a third")
            draining.terminate()
            began_s = time.monotonic()
            new = await answers_until(scene, lambda _: time.monotonic() - began_s >= WATCH_S, SHORT)
            took_s = time.monotonic() - began_s
            still_there = draining.running
            finished = await asyncio.gather(*old)
        failed = [answer for answer in new if answer.status != 200]
        assert await draining.exit_code() == 0
        port = endpoint_of(draining).rpartition(":")[2]
        async with sim_process("--engine", "vllm", *SLOW, "--port", port) as successor:

            def has_its_share(answers: list[Answer]) -> bool:
                latest = servers(answers[-60:])
                return len(latest) == 3 and min(latest.values()) >= 10

            back = await answers_until(scene, has_its_share, SHORT)
            assert endpoint_of(successor) == endpoint_of(draining)

    assert still_there
    assert all(answer.body.endswith(b"[DONE]\n\n") for answer in finished)
    assert {answer.status for answer in failed} == {500}
    assert len(failed) <= FAILURES_TO_DEMOTE - 1 + CLIENTS + took_s / PROBE_PAUSE_S, "those that were under way, and probes"
    assert [answer.status for answer in back if answer.status != 200] == []


async def test_full_servers_that_answer_at_once_and_not_in_pieces_are_called_busy_and_not_failing() -> None:
    """A good answer comes seconds after its request, a refusal in milliseconds, so refusals come by the hundred in a row."""
    async with start_sims(2, "--engine", "sglang", *SLOW, "--slots", "1", "--max-queue", "1") as (scene, sims):
        reasons: set[str | None] = set()

        async def look() -> None:
            while True:
                reasons.update(endpoint["demoted_because"] for endpoint in (await scene.epp.pool()).values())
                await asyncio.sleep(0.02)

        looking = asyncio.create_task(look())

        def is_enough(answers: list[Answer]) -> bool:
            good = servers(answers)
            return len(good) == len(sims) and min(good.values()) >= 2

        answers = await answers_until(scene, is_enough, body(60))
        looking.cancel()

        async def is_well() -> bool:
            return all(endpoint["demoted_because"] is None for endpoint in (await scene.epp.pool()).values())

        await wait_until(is_well, "both to have their share")

    refused = [answer.status for answer in answers if answer.status != 200]
    assert set(refused) == {503}
    assert len(refused) > 100
    assert not [why for why in reasons if why is not None and "failed" in why]
