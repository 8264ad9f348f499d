"""The server around the engine: pages, ports, loading, faults."""

import asyncio
import json
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.sim.config import SimConfig
from epp.sim.engines.names import ENGINE_SETTINGS
from epp.sim.server import SimServer
from tests.fakes.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.sim.client_side import CHAT, STILL_S, fast, get, is_pending, leave, post, running, until
from tests.sim.views import Samples

METRICS_PATHS = {
    "vllm": "/metrics",
    "sglang": "/metrics",
    "trtllm-serve": "/prometheus/metrics",
    "triton-tensorrt-llm": "/metrics",
    "llamacpp": "/metrics",
    "tgi": "/metrics",
    "lmdeploy": "/metrics",
    "nim": "/v1/metrics",
}
HEALTH_PATHS = {
    "vllm": "/health",
    "trtllm-serve": "/health",
    "triton-tensorrt-llm": "/v2/health/ready",
    "llamacpp": "/health",
    "tgi": "/health",
    "ollama": "/",
    "lmdeploy": "/health",
    "nim": "/v1/health/ready",
}


@pytest.mark.parametrize("engine", ENGINE_SETTINGS)
async def test_every_engine_answers_names_itself_and_lists_its_models(engine: str) -> None:
    async with running(fast(engine=engine, served_model_names=("a", "b"), lora_adapters=("c",))) as (server, client):
        status, headers, _ = await post(client, "/v1/chat/completions", {**CHAT, "model": "b", "max_tokens": 1})
        _, models = await get(client, "/v1/models")
        missing, _ = await get(client, "/nothing/here")

        assert (status, headers["x-sim-name"]) == (200, f"{engine}-{server.address.rpartition(':')[2]}")
        assert [entry["id"] for entry in json.loads(models)["data"]] == ["a", "b", "c"]
        assert missing == 404


@pytest.mark.parametrize(("engine", "path"), METRICS_PATHS.items())
async def test_the_metrics_page_is_where_the_engine_has_it(engine: str, path: str) -> None:
    async with running(fast(engine=engine)) as (server, client):
        await post(client, "/v1/completions", {"prompt": "x", "max_tokens": 1})
        status, page = await get(client, path)

        assert status == 200
        assert Samples(page.decode()).all
        assert server.metrics_hits == 1


@pytest.mark.parametrize(("engine", "path"), HEALTH_PATHS.items())
async def test_health_is_where_the_engine_has_it(engine: str, path: str) -> None:
    async with running(SimConfig(engine=engine)) as (_, client):
        status, _ = await get(client, path)

    assert status == 200


async def test_health_of_sglang_takes_a_second() -> None:
    async with running(SimConfig(engine="sglang")) as (_, client):
        begin_s = time.monotonic()
        status, _ = await get(client, "/health")

    assert status == 200
    assert time.monotonic() - begin_s >= 1.0


@pytest.mark.parametrize(("engine", "status"), [("llamacpp", 501), ("sglang", 404), ("vllm", 200)])
async def test_a_page_that_was_not_asked_for_is_missing_in_the_engines_manner(engine: str, status: int) -> None:
    """Field report 43: some servers have no such page."""
    async with running(SimConfig(engine=engine, metrics_enabled=False)) as (_, client):
        found, page = await get(client, "/metrics")

    assert found == status
    assert b"vllm:" not in page


async def test_metrics_can_live_on_another_port_and_path() -> None:
    """Field report 44: port and path of the metrics differ from the API's."""
    config = SimConfig(metrics_port=0, metrics_path="/internal/m")
    async with running(config) as (server, client):
        assert server.metrics_address != server.address
        assert (await get(client, "/internal/m"))[0] == 404
        assert (await get(client, "/metrics"))[0] == 404
        status, page = await get(client, f"http://{server.metrics_address}/internal/m")

        assert status == 200
        assert b"vllm:num_requests_running" in page


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_address_is_written_as_in_a_url(host: str) -> None:
    async with running(SimConfig(host=host)) as (server, client):
        status, _ = await get(client, "/health")

        assert status == 200
        assert server.url == f"http://{server.address}"
        assert server.address.startswith("[::1]:" if host == "::1" else "127.0.0.1:")


async def test_trtllm_gives_its_iterations_away_once() -> None:
    clock = FakeClock()
    async with running(SimConfig(engine="trtllm-serve", decode_tokens_per_s=20), clock=clock) as (server, client):
        assert json.loads((await get(client, "/metrics"))[1]) == []
        task = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x", "max_tokens": 8}))
        await until(lambda: server.running_requests == 1)
        rows = json.loads((await get(client, "/metrics"))[1])
        assert rows[-1]["numActiveRequests"] == 1
        assert rows[-1]["kvCacheStats"]["usedNumBlocks"] == 1
        clock.advance(1)
        await task
        rest = json.loads((await get(client, "/metrics"))[1])
        assert rest[-1]["numCompletedRequests"] == 1
        assert json.loads((await get(client, "/metrics"))[1]) == []


async def test_gauges_of_trtllm_stand_still_until_a_request_finishes() -> None:
    config = SimConfig(engine="trtllm-serve", decode_tokens_per_s=1)
    async with running(config) as (server, client):
        long = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True}))
        await until(lambda: server.running_requests == 1)
        _, before = await get(client, "/prometheus/metrics")
        await post(client, "/v1/completions", {"prompt": "y", "max_tokens": 1})
        _, after = await get(client, "/prometheus/metrics")
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)

    assert "trtllm_num_requests_running" not in Samples(before.decode()).names()
    assert Samples(after.decode()).value("trtllm_num_requests_running") == 1


async def test_gauges_of_lmdeploy_are_seconds_old_unless_told_otherwise() -> None:
    for refresh_s, running_requests in ((None, 0), (0.0, 1)):
        config = SimConfig(engine="lmdeploy", decode_tokens_per_s=1, metrics_refresh_s=refresh_s)
        async with running(config) as (server, client):
            task = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x", "max_tokens": 50}))
            await until(lambda server=server: server.running_requests == 1)  # type: ignore[misc]
            _, page = await get(client, "/metrics")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert Samples(page.decode()).value("lmdeploy:num_requests_running") == running_requests


async def test_sglang_tells_its_load_as_json_and_as_metrics() -> None:
    async with running(SimConfig(engine="sglang", slots=1, decode_tokens_per_s=1)) as (server, client):
        body = {"prompt": "x" * 400, "max_tokens": 50}
        tasks = [asyncio.create_task(post(client, "/v1/completions", body)) for _ in range(2)]
        await until(lambda: server.waiting_requests == 1)
        (load,) = json.loads((await get(client, "/v1/loads?include=core"))[1])["loads"]
        _, page = await get(client, "/v1/loads?format=prometheus")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (1, 1, 1)
    assert load["num_waiting_uncached_tokens"] == 100
    assert Samples(page.decode()).value("sglang_num_waiting_reqs", dp_rank="0") == 1


async def test_llamacpp_shows_its_slots() -> None:
    async with running(SimConfig(engine="llamacpp", slots=2, decode_tokens_per_s=1)) as (server, client):
        task = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x", "max_tokens": 50}))
        await until(lambda: server.running_requests == 1)
        slots = json.loads((await get(client, "/slots"))[1])
        free, _ = await get(client, "/slots?fail_on_no_slot=1")
        props = json.loads((await get(client, "/props"))[1])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert [slot["is_processing"] for slot in slots] == [True, False]
    assert free == 200
    assert props["total_slots"] == 2


async def test_a_scrape_of_llamacpp_waits_for_the_prompt_batch() -> None:
    """Field report 42: busy servers answer scrapes late."""
    prompt = {"prompt": "x" * 1200, "max_tokens": 1}
    # The clock stands still, so that the whole batch is still to be computed when the page is asked for.
    for prefill_tokens_per_s, takes_s in ((1, 300.0), (1000, 0.3)):
        config = SimConfig(engine="llamacpp", prefill_tokens_per_s=prefill_tokens_per_s)
        async with running(config, clock=FakeClock()) as (server, client):
            task = asyncio.create_task(post(client, "/v1/completions", prompt))
            await until(lambda server=server: server.running_requests == 1)  # type: ignore[misc]
            begin_s = time.monotonic()
            page = asyncio.create_task(get(client, "/metrics"))
            await until(lambda server=server: server.metrics_hits == 1)  # type: ignore[misc]
            await get(client, "/health")
            if takes_s > STILL_S:
                assert await is_pending(page)
            else:
                await page
                assert time.monotonic() - begin_s >= takes_s
            await leave(task, page)


async def test_ollama_lists_a_model_as_loaded_after_its_first_request() -> None:
    config = fast(engine="ollama", startup_delay_s=0.5)
    async with running(config) as (server, client):
        assert server.ready.is_set()
        assert (await get(client, "/"))[1] == b"Ollama is running"
        assert json.loads((await get(client, "/api/ps"))[1]) == {"models": []}
        begin_s = time.monotonic()
        await post(client, "/v1/completions", {"prompt": "x", "max_tokens": 1})
        cold_s = time.monotonic() - begin_s
        warm_s = []
        for _ in range(10):  # of which a busy machine may hold up some
            begin_s = time.monotonic()
            await post(client, "/v1/completions", {"prompt": "x", "max_tokens": 1})
            warm_s.append(time.monotonic() - begin_s)
        (loaded,) = json.loads((await get(client, "/api/ps"))[1])["models"]
        (stored,) = json.loads((await get(client, "/api/tags"))[1])["models"]

    assert cold_s >= 0.5 > min(warm_s)
    assert loaded["name"] == stored["name"] == "sim-model"


LOADING_S = 300.0
"""Longer than any test."""


async def check_that_it_serves_once_it_is_loaded(engine: str, path: str) -> None:
    async with running(SimConfig(engine=engine, startup_delay_s=0.1)) as (server, client):
        async with asyncio.timeout(PATIENCE_S):
            await server.ready.wait()
        assert (await get(client, path))[0] == 200


@pytest.mark.parametrize("engine", ["sglang", "tgi", "lmdeploy"])
async def test_while_loading_some_engines_refuse_connections(engine: str) -> None:
    async with running(SimConfig(engine=engine, startup_delay_s=LOADING_S)) as (_, client):
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(client, "/v1/models")
    await check_that_it_serves_once_it_is_loaded(engine, "/v1/models")


@pytest.mark.parametrize("engine", ["vllm", "nim"])
async def test_while_loading_vllm_takes_connections_and_is_silent(engine: str) -> None:
    async with running(SimConfig(engine=engine, startup_delay_s=LOADING_S)) as (server, client):
        host, _, port = server.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        silent = asyncio.create_task(get(client, "/v1/models"))
        assert await is_pending(silent)
        await leave(silent)
        writer.close()
        await writer.wait_closed()
    await check_that_it_serves_once_it_is_loaded(engine, "/v1/models")


@pytest.mark.parametrize(
    ("engine", "path", "status", "part"),
    [
        ("llamacpp", "/health", 503, "Loading model"),
        ("llamacpp", "/v1/models", 503, "Loading model"),
        ("trtllm-serve", "/health", 503, "starting"),
        ("triton-tensorrt-llm", "/v2/health/ready", 400, "not ready"),
        ("triton-tensorrt-llm", "/v2/health/live", 200, ""),
    ],
)
async def test_while_loading_some_engines_answer_that_they_load(engine: str, path: str, status: int, part: str) -> None:
    async with running(SimConfig(engine=engine, startup_delay_s=LOADING_S)) as (_, client):
        found, body = await get(client, path)
        assert (found, part in body.decode()) == (status, True)
    await check_that_it_serves_once_it_is_loaded(engine, path)


async def test_sigterm_while_loading_is_the_end() -> None:
    async with running(SimConfig(engine="llamacpp", startup_delay_s=60)) as (server, _):
        server.terminate()

        assert server.terminated.is_set()
        assert not server.ready.is_set()


async def test_a_frozen_page_stays_while_load_changes() -> None:
    async with running(SimConfig(decode_tokens_per_s=1)) as (server, client):
        server.freeze_metrics()
        task = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x", "max_tokens": 50}))
        await until(lambda: server.running_requests == 1)
        _, frozen = await get(client, "/metrics")
        server.thaw_metrics()
        _, thawed = await get(client, "/metrics")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert Samples(frozen.decode()).value("vllm:num_requests_running") == 0
    assert Samples(thawed.decode()).value("vllm:num_requests_running") == 1


async def test_faults_of_the_metrics_page_leave_requests_alone() -> None:
    async with running(fast()) as (server, client):
        server.faults.metrics_delay_s = LOADING_S
        slow = asyncio.create_task(get(client, "/metrics"))
        await until(lambda: server.metrics_hits == 1)
        assert (await post(client, "/v1/completions", {"prompt": "x", "max_tokens": 1}))[0] == 200
        assert await is_pending(slow)
        await leave(slow)
        server.faults.metrics_delay_s = 0.2
        begin_s = time.monotonic()
        assert (await get(client, "/metrics"))[0] == 200
        assert time.monotonic() - begin_s >= 0.2
        server.faults.metrics_delay_s, server.faults.metrics_status = 0.0, 500
        assert (await get(client, "/metrics"))[0] == 500


async def test_a_page_that_takes_long_to_render_holds_up_everything() -> None:
    """Field report 36: the page is rendered on the loop that streams tokens."""
    async with running(fast(metrics_delay_s=0.3)) as (_, client):
        page = asyncio.create_task(get(client, "/metrics"))
        turns_s = [time.monotonic()]
        while not page.done():
            await asyncio.sleep(0)
            turns_s.append(time.monotonic())
        await page
    assert max(later_s - earlier_s for earlier_s, later_s in pairwise(turns_s)) >= 0.3


async def test_a_failing_server_answers_quickly_and_counts_nothing_as_served() -> None:
    async with running(SimConfig(decode_tokens_per_s=1)) as (server, client):
        server.faults.answer_status = 503
        status, headers, _ = await post(client, "/v1/completions", {"prompt": "x"})
        assert (status, headers["x-sim-name"]) == (503, server.name)
        assert (server.requests_received, server.requests_served, server.running_requests) == (1, 0, 0)
        server.faults.answer_status = None
        assert (await post(client, "/v1/completions", {"prompt": "x", "max_tokens": 1}))[0] == 200


async def test_a_stuck_server_never_answers_and_looks_idle() -> None:
    """Field report 41: health and metrics are perfect while nothing is answered."""
    async with running(fast()) as (server, client):
        server.faults.never_answer = True
        unanswered = asyncio.create_task(post(client, "/v1/completions", {"prompt": "x"}))
        await until(lambda: server.requests_received == 1)
        _, page = await get(client, "/metrics")
        assert Samples(page.decode()).value("vllm:num_requests_running") == 0
        assert (await get(client, "/health"))[0] == 200
        assert await is_pending(unanswered)
        await leave(unanswered)


async def test_a_listener_goes_away_and_comes_back_on_the_same_port() -> None:
    async with running(fast()) as (server, client):
        address = server.address
        server.close_listeners()
        server.cut_connections()
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(client, "/health")
        await server.reopen_listeners()
        assert server.address == address
        assert (await get(client, "/health"))[0] == 200


async def test_leaving_the_context_ends_running_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epp.sim.front.CLOSE_S", PATIENCE_S)
    async with aiohttp.ClientSession() as client:
        async with SimServer(SimConfig(decode_tokens_per_s=1)) as server:
            tasks = [asyncio.create_task(client.post(f"{server.url}/v1/completions", json={"prompt": "x"})) for _ in range(3)]
            await until(lambda: server.running_requests == 3)
            begin_s = time.monotonic()
        assert time.monotonic() - begin_s < PATIENCE_S, "it waited for handlers that had not ended"
        results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, aiohttp.ClientError) for result in results)


async def test_a_port_in_use_is_an_error_and_leaves_no_socket_behind() -> None:
    async with SimServer() as first:
        port = int(first.address.rpartition(":")[2])
        before = _open_sockets()
        with pytest.raises(OSError, match="in use"):
            async with SimServer(SimConfig(metrics_port=port)):
                pass

        assert _open_sockets() <= before


def _open_sockets() -> set[str]:
    """By the numbers that the kernel gives them; those of earlier tests may be collected at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.add(str(entry.readlink()))
    return {each for each in found if each.startswith("socket:")}


async def test_paths_that_clients_make_up_do_not_grow_the_counters_without_end() -> None:
    async with running(SimConfig(engine="sglang")) as (_, client):
        for number in range(100):
            await get(client, f"/made/up/{number}")
        _, page = await get(client, "/metrics")

    assert len(Samples(page.decode()).labels("sglang:http_requests_total")) <= 66
