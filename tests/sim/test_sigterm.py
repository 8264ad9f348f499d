"""What each engine's process does at SIGTERM (Field report 14: model servers differ, and most cut what runs)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.sim.process import SimProcess, sim_process

RATE = ("--decode-rate", "50")
SLOW = ("--decode-rate", "0.1")
"""What runs at this rate does not end by itself while a test lasts."""
STILL_S = 1.0
"""How long nothing must happen where something would if it were wrong; what is right passes however long it takes."""
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
    """A request of `tokens` tokens that is known to run, or has ended already because the machine is slower than it."""
    task = asyncio.create_task(sim.post("x", tokens, **members))
    await sim.wait_for_load(*LOAD_PAGES[engine], unless=task)
    if engine == "lmdeploy":  # its page is always ten seconds old
        await asyncio.sleep(0.2)
    return task


@asynccontextmanager
async def kept_connection(sim: SimProcess) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that has had an answer and keeps its connection."""
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=1_000)
    async with aiohttp.ClientSession(connector=connector) as client:
        assert await post_on(client, sim) == 200
        yield client


async def post_on(client: aiohttp.ClientSession, sim: SimProcess) -> int:
    async with client.post(sim.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2}) as response:
        await response.read()
        return response.status


async def outcome(task: asyncio.Task[Any]) -> tuple[int, str] | Exception:
    try:
        result: tuple[int, str] = await task
    except aiohttp.ClientError as error:
        return error
    return result


async def test_vllm_and_nim_by_default_answer_500_to_everything_and_refuse_at_once() -> None:
    await asyncio.gather(*(check_that_everything_is_aborted(engine) for engine in ("vllm", "nim")))


async def check_that_everything_is_aborted(engine: str) -> None:
    path, one_runs = LOAD_PAGES[engine]
    async with sim_process("--engine", engine, "--slots", "2", *SLOW) as sim:
        running = await start_one(sim, engine, tokens=1000)
        streaming = asyncio.create_task(sim.post("z", 1000, stream=True))
        await sim.wait_for_load(path, one_runs.replace(" 1.0", " 2.0"))
        waiting = asyncio.create_task(sim.post("y", 1000))
        await sim.wait_for_load(path, one_runs.replace("_running", "_waiting"))
        sim.terminate()

        assert (await running)[0] == 500
        assert (await waiting)[0] == 500
        status, text = await streaming
        assert status == 200
        assert '"error"' in text.split("\n\n")[-3]
        assert text.endswith("data: [DONE]\n\n")
        assert await sim.refuses()
        assert await sim.exit_code() == 0


async def test_vllm_with_a_timeout_fails_what_is_new_and_looks_healthy() -> None:
    async with sim_process("--slots", "1", *SLOW, "--shutdown-timeout", "300s") as sim:
        running = await start_one(sim, "vllm", tokens=1000)
        waiting = asyncio.create_task(sim.post("y", 20))
        path, one_runs = LOAD_PAGES["vllm"]
        one_waits = one_runs.replace("_running", "_waiting")
        await sim.wait_for_load(path, one_waits)
        sim.terminate()
        new, _ = await sim.post("z", 1)
        health, _ = await sim.get("/health")
        _, page = await sim.get("/metrics")

        assert (new, health) == (500, 200)
        assert one_runs in page
        assert one_waits in page
        assert not running.done()
        assert not waiting.done()
        assert sim.running
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert await sim.exit_code() == 0


async def test_vllm_with_a_timeout_finishes_what_runs_and_waits() -> None:
    async with sim_process("--slots", "1", *RATE, "--shutdown-timeout", "300s") as sim:
        running = await start_one(sim, "vllm", tokens=60)
        waiting = asyncio.create_task(sim.post("y", 20))
        path, one_runs = LOAD_PAGES["vllm"]
        await sim.wait_for_load(path, one_runs.replace("_running", "_waiting"), unless=waiting)
        sim.terminate()

        assert (await running)[0] == 200
        assert (await waiting)[0] == 200
        assert await sim.exit_code() == 0


async def test_vllm_cuts_what_is_left_when_its_timeout_ends() -> None:
    async with sim_process(*SLOW, "--shutdown-timeout", "300ms") as sim:
        running = await start_one(sim, "vllm", tokens=1000)
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert await sim.exit_code() == 0


async def test_sglang_is_unhealthy_serves_new_requests_and_exits_only_when_idle() -> None:
    async with sim_process("--engine", "sglang", "--decode-rate", "1", "--sigterm-watchdog", "200ms") as sim:
        lasting = await start_one(sim, "sglang", tokens=1000)
        short = asyncio.create_task(sim.post("z", 3))
        await sim.wait_for_load("/v1/loads", '"num_running_reqs":2', unless=short)
        sim.terminate()
        health, _ = await sim.get("/health")
        new, _ = await sim.post("y", 2)

        assert (health, new) == (503, 200)
        assert (await short)[0] == 200
        assert not lasting.done()
        assert sim.running
        lasting.cancel()
        await asyncio.gather(lasting, return_exceptions=True)
        assert await sim.exit_code() == 0


async def test_plain_http_servers_refuse_at_once_and_finish_what_runs() -> None:
    await asyncio.gather(*(check_that_what_runs_is_finished(engine) for engine in ("trtllm-serve", "lmdeploy", "tgi")))


async def check_that_what_runs_is_finished(engine: str) -> None:
    async with sim_process("--engine", engine, *RATE) as sim:
        running = await start_one(sim, engine, tokens=60, stream=True)
        sim.terminate()

        assert await sim.refuses()
        status, text = await running
        assert (status, text.count('"text":"')) == (200, 61)
        assert await sim.exit_code() == 0
    async with sim_process("--engine", engine, *SLOW) as sim:
        running = await start_one(sim, engine, tokens=1000, stream=True)
        sim.terminate()

        assert await sim.refuses()
        assert sim.running
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_tgi_cuts_what_is_left_when_its_grace_ends() -> None:
    async with sim_process("--engine", "tgi", *SLOW, "--graceful-timeout", "300ms") as sim:
        running = await start_one(sim, "tgi", tokens=1000)
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert await sim.exit_code() == 0


async def test_triton_serves_kept_connections_and_exits_when_the_last_is_gone() -> None:
    async with sim_process("--engine", "triton-tensorrt-llm", *RATE, "--exit-timeout", "300s") as sim:
        async with kept_connection(sim) as keeping:
            sim.terminate()
            assert await sim.refuses()
            assert await post_on(keeping, sim) == 200
            assert sim.running
        assert await sim.exit_code() == 0


async def test_triton_ends_kept_connections_at_its_timeout() -> None:
    async with sim_process("--engine", "triton-tensorrt-llm", *RATE, "--exit-timeout", "1s") as sim, kept_connection(sim):
        begin_s = time.monotonic()
        sim.terminate()

        assert await sim.exit_code() == 0
        assert time.monotonic() - begin_s >= 1.0


async def test_triton_finishes_what_runs() -> None:
    async with sim_process("--engine", "triton-tensorrt-llm", *RATE, "--exit-timeout", "300s") as sim:
        running = await start_one(sim, "triton-tensorrt-llm", tokens=60)
        sim.terminate()

        assert (await running)[0] == 200
        assert await sim.exit_code() == 0


async def test_llamacpp_refuses_at_once_and_leaves_running_requests_hanging_until_their_clients_leave() -> None:
    async with sim_process("--engine", "llamacpp", "--decode-rate", "10") as sim:
        body = {"prompt": "x", "max_tokens": 10_000, "ignore_eos": True, "stream": True}
        async with sim.client.post(sim.url + "/v1/completions", json=body) as response:
            await response.content.readany()
            sim.terminate()
            assert await sim.refuses()
            assert await reads_until_still(response) <= 10, "of a token each 100 ms"
            assert sim.running
        assert await sim.exit_code() == 0


async def reads_until_still(response: aiohttp.ClientResponse) -> int:
    """How many pieces come, of those that were on their way, before none comes any more."""
    for count in range(100):
        try:
            async with asyncio.timeout(STILL_S):
                assert await response.content.readany(), "expected a stream that hangs, found its end"
        except TimeoutError:
            return count
    return 100


async def test_a_second_signal_ends_llamacpp_with_1() -> None:
    async with sim_process("--engine", "llamacpp", *SLOW) as sim:
        running = await start_one(sim, "llamacpp", tokens=1000)
        sim.terminate()
        assert await sim.refuses()
        sim.terminate()

        assert await sim.exit_code() == 1
        assert isinstance(await outcome(running), aiohttp.ClientError)


async def test_ollama_cuts_every_connection_at_once() -> None:
    async with sim_process("--engine", "ollama", *SLOW) as sim:
        running = await start_one(sim, "ollama", tokens=1000)
        streaming = asyncio.create_task(sim.post("z", 1000, stream=True))
        await asyncio.sleep(0.2)  # time to come to the server; whoever comes too late is refused
        sim.terminate()

        assert isinstance(await outcome(running), aiohttp.ClientError)
        assert isinstance(await outcome(streaming), aiohttp.ClientError)
        assert await sim.exit_code() == 0
