"""What each engine's process does at SIGTERM (Field report 14: model servers differ, and most cut what runs)."""

import asyncio
import time
from typing import Any

import aiohttp

from tests.sim.process import SimProcess, sim_process

RATE = ("--decode-rate", "50")
LOAD_PAGES = {
    "vllm": ("/metrics", 'vllm:num_requests_running{engine="0",model_name="sim-model"} 1.0'),
    "nim": ("/v1/metrics", 'num_requests_running{model_name="sim-model"} 1.0'),
    "sglang": ("/v1/loads", '"num_running_reqs":1'),
    "trtllm-serve": ("/metrics", '"numActiveRequests":1'),
    "triton-tensorrt-llm": ("/metrics", 'request_type="scheduled",version="1"} 1'),
    "llamacpp": ("/slots", '"is_processing":true'),
    "tgi": ("/metrics", "tgi_batch_current_size 1"),
    "lmdeploy": ("/metrics", "lmdeploy:num_requests_running{"),
    "ollama": ("/api/ps", "sim-model"),
}


async def start_one(sim: SimProcess, engine: str, *, tokens: int, **members: object) -> asyncio.Task[Any]:
    """A request of `tokens` tokens that is known to run."""
    task = asyncio.create_task(sim.post("x", tokens, **members))
    await sim.wait_for_load(*LOAD_PAGES[engine])
    if engine == "lmdeploy":  # its page is always ten seconds old
        await asyncio.sleep(0.2)
    return task


async def outcome(task: asyncio.Task[Any]) -> tuple[int, str] | Exception:
    try:
        result: tuple[int, str] = await task
    except aiohttp.ClientError as error:
        return error
    return result


async def test_vllm_and_nim_by_default_answer_500_to_everything_and_refuse_at_once() -> None:
    await asyncio.gather(*(check_that_everything_is_aborted(engine) for engine in ("vllm", "nim")))


async def check_that_everything_is_aborted(engine: str) -> None:
    async with sim_process("--engine", engine, "--slots", "2", *RATE) as sim:
        running = await start_one(sim, engine, tokens=1000)
        streaming = asyncio.create_task(sim.post("z", 1000, stream=True))
        waiting = asyncio.create_task(sim.post("y", 1000))
        await asyncio.sleep(0.2)
        begin_s = time.monotonic()
        sim.terminate()

        assert (await running)[0] == 500
        assert (await waiting)[0] == 500
        status, text = await streaming
        assert status == 200
        assert '"error"' in text.split("\n\n")[-3]
        assert text.endswith("data: [DONE]\n\n")
        assert time.monotonic() - begin_s < 2
        assert await sim.refuses()
        assert await sim.exit_code() == 0


async def test_vllm_with_a_timeout_finishes_what_runs_fails_what_is_new_and_looks_healthy() -> None:
    async with sim_process("--slots", "1", *RATE, "--shutdown-timeout", "30s") as sim:
        running = await start_one(sim, "vllm", tokens=60)
        waiting = asyncio.create_task(sim.post("y", 20))
        await asyncio.sleep(0.1)
        sim.terminate()
        await asyncio.sleep(0.1)
        begin_s = time.monotonic()
        new = await sim.post("z", 1)
        new_took_s = time.monotonic() - begin_s
        health, _ = await sim.get("/health")
        _, page = await sim.get("/metrics")

        assert (new[0], health) == (500, 200)
        assert new_took_s < 0.5
        assert 'vllm:num_requests_waiting{engine="0",model_name="sim-model"} 1.0' in page
        assert (await running)[0] == 200
        assert (await waiting)[0] == 200
        assert await sim.exit_code(within_s=3) == 0


async def test_vllm_cuts_what_is_left_when_its_timeout_ends() -> None:
    async with sim_process(*RATE, "--shutdown-timeout", "300ms") as sim:
        running = await start_one(sim, "vllm", tokens=1000)
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert await sim.exit_code(within_s=3) == 0


async def test_sglang_is_unhealthy_serves_new_requests_and_exits_only_when_idle() -> None:
    async with sim_process("--engine", "sglang", *RATE, "--sigterm-watchdog", "200ms") as sim:
        running = await start_one(sim, "sglang", tokens=50)
        sim.terminate()
        await asyncio.sleep(0.1)
        health, _ = await sim.get("/health")
        new = await sim.post("y", 60)

        assert (health, new[0]) == (503, 200)
        assert (await running)[0] == 200
        assert await sim.exit_code(within_s=3) == 0


async def test_plain_http_servers_refuse_at_once_and_finish_what_runs() -> None:
    await asyncio.gather(*(check_that_what_runs_is_finished(engine) for engine in ("trtllm-serve", "lmdeploy", "tgi")))


async def check_that_what_runs_is_finished(engine: str) -> None:
    async with sim_process("--engine", engine, *RATE) as sim:
        running = await start_one(sim, engine, tokens=60, stream=True)
        sim.terminate()

        assert await sim.refuses(within_s=1)
        assert sim.running
        status, text = await running
        assert (status, text.count('"text":"')) == (200, 61)
        assert await sim.exit_code(within_s=3) == 0


async def test_tgi_cuts_what_is_left_when_its_grace_ends() -> None:
    async with sim_process("--engine", "tgi", *RATE, "--graceful-timeout", "300ms") as sim:
        running = await start_one(sim, "tgi", tokens=1000)
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert await sim.exit_code(within_s=3) == 0


async def test_triton_serves_kept_connections_until_its_timeout() -> None:
    async with (
        sim_process("--engine", "triton-tensorrt-llm", *RATE, "--exit-timeout", "2s") as sim,
        aiohttp.ClientSession() as keeping,
    ):
        url = sim.url + "/v1/completions"
        body = {"prompt": "x", "max_tokens": 2}
        async with keeping.post(url, json=body) as response:
            await response.read()
        begin_s = time.monotonic()
        sim.terminate()
        assert await sim.refuses(within_s=1)
        async with keeping.post(url, json=body) as response:
            assert response.status == 200
            await response.read()

        assert sim.running
        assert await sim.exit_code(within_s=5) == 0
        assert time.monotonic() - begin_s >= 2.0


async def test_triton_exits_when_its_last_connection_is_gone() -> None:
    async with sim_process("--engine", "triton-tensorrt-llm", *RATE, "--exit-timeout", "60s") as sim:
        running = await start_one(sim, "triton-tensorrt-llm", tokens=20)
        sim.terminate()

        assert (await running)[0] == 200
        assert await sim.exit_code(within_s=3) == 0


async def test_llamacpp_refuses_at_once_and_leaves_running_requests_hanging_until_their_clients_leave() -> None:
    async with sim_process("--engine", "llamacpp", *RATE) as sim:
        running = await start_one(sim, "llamacpp", tokens=30)
        sim.terminate()
        assert await sim.refuses()
        _, still_open = await asyncio.wait([running], timeout=1.0)

        assert still_open
        assert sim.running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await sim.exit_code(within_s=3) == 0


async def test_a_second_signal_ends_llamacpp_with_1() -> None:
    async with sim_process("--engine", "llamacpp", *RATE) as sim:
        running = await start_one(sim, "llamacpp", tokens=1000)
        sim.terminate()
        assert await sim.refuses()
        sim.terminate()

        assert await sim.exit_code(within_s=3) == 1
        assert isinstance(await outcome(running), aiohttp.ClientError)


async def test_ollama_cuts_every_connection_at_once() -> None:
    async with sim_process("--engine", "ollama", *RATE) as sim:
        running = await start_one(sim, "ollama", tokens=1000)
        streaming = asyncio.create_task(sim.post("z", 1000, stream=True))
        await asyncio.sleep(0.2)
        begin_s = time.monotonic()
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert isinstance(await outcome(streaming), aiohttp.ClientError)
        assert time.monotonic() - begin_s < 1
        assert await sim.exit_code(within_s=3) == 0
