"""The command and the script against a running server of every engine, and against a running endpoint picker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from epp.drain.shutdown import ENGINES
from tests.drain.both_hooks import both_hooks
from tests.fakes.picker_admin import picker_admin
from tests.flows.harness import start_all
from tests.sim.process import SimProcess, sim_process

pytestmark = pytest.mark.flow

QUICK = ("--min-wait", "200ms", "--interval", "100ms")
UNSURE_PAGES = ("trtllm-serve", "ollama")
"""The page of the one may stand still at zero, the other has none: only the endpoint picker's count is sure."""
BODY = b'{"model": "m", "prompt": "x", "stream": true}'


async def running_request(sim: SimProcess) -> AsyncGenerator[None, None]:
    """Gives control when a streaming answer has begun; goes on for minutes unless it is closed."""
    body = {"model": "sim-model", "prompt": "hello", "max_tokens": 10_000, "ignore_eos": True, "stream": True}
    async with sim.client.post(sim.url + "/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readany()
        yield


@pytest.mark.parametrize("engine", [each for each in ENGINES if each not in UNSURE_PAGES])
async def test_they_wait_for_a_busy_server_of_every_engine_and_end_when_it_is_idle(engine: str, tmp_path: Path) -> None:
    own_port = ("--metrics-port", "0") if engine == "triton-tensorrt-llm" else ()
    soon = ("--metrics-refresh", "0s") if engine == "lmdeploy" else ()  # else 10 s go by before it shows the request
    sim_flags = ("--engine", engine, "--decode-rate", "20", *own_port, *soon)
    async with sim_process(*sim_flags, lines=2 if own_port else 1) as sim, aclosing(running_request(sim)) as request:
        await anext(request)
        pages = ("--metrics-url", sim.lines[1].removeprefix("metrics on ")) if own_port else ()
        flags = ("--engine", engine, "--url", sim.url, *pages, *QUICK)
        async with both_hooks(tmp_path, ENGINES[engine].tools, *flags) as hooks:
            for hook in hooks:
                await hook.says("the engine's page: 1 requests")
                assert hook.process.returncode is None
            await request.aclose()
            logs = await asyncio.gather(*(hook.ends() for hook in hooks))

    for log in logs:
        assert "the engine's page: no requests" in log
        assert log.endswith(": idle\n")


@pytest.mark.parametrize("engine", UNSURE_PAGES)
async def test_where_the_page_does_not_tell_they_wait_for_the_endpoint_pickers_count(engine: str, tmp_path: Path) -> None:
    async with (
        picker_admin() as admin,
        sim_process("--engine", engine, "--decode-rate", "20") as sim,
        aclosing(running_request(sim)) as request,
    ):
        await anext(request)
        admin.in_flight = 1
        to = ("--epp-url", admin.url, "--endpoint", "10.0.0.1:8000")
        async with both_hooks(tmp_path, ENGINES[engine].tools, "--engine", engine, "--url", sim.url, *to, *QUICK) as hooks:
            for hook in hooks:
                await hook.says("10.0.0.1:8000: 1 requests")
                await hook.says("the engine's page: ")
                assert hook.process.returncode is None
            await request.aclose()
            admin.in_flight = 0
            logs = await asyncio.gather(*(hook.ends() for hook in hooks))

    for log in logs:
        assert "10.0.0.1:8000: no requests" in log
        assert log.endswith(": idle\n")


async def test_a_running_endpoint_picker_hears_them_and_tells_when_the_last_stream_has_ended(tmp_path: Path) -> None:
    async with start_all(2) as scene:
        leaving, staying = scene.upstreams
        flags = ("--epp-url", f"http://{scene.epp.metrics}", "--endpoint", leaving.endpoint, *QUICK)
        with scene.gates_closed():
            async with scene.at_once(4, "/held", body=BODY) as streams, both_hooks(tmp_path, ("curl", "awk"), *flags) as hooks:
                for hook in hooks:
                    await hook.says(f"about {leaving.endpoint}: 2 requests")
                    assert hook.process.returncode is None
                async with scene.at_once(4, "/held", body=BODY) as later:
                    assert (leaving.active_requests, staying.active_requests) == (2, 6)
                    scene.open_gates()
                    answers = await asyncio.gather(*streams, *later)
                logs = await asyncio.gather(*(hook.ends() for hook in hooks))

        assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)
        assert all(log.endswith(": idle\n") for log in logs)
        assert scene.epp.log_records("error") == []
