"""Drain calls on the admin port of a running picker, and of two that tell one another."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from epp.drain.idle_watch import Told
from epp.drain.picker_calls import PickerCalls
from epp.drain.plan import DrainPlan
from tests.fakes.upstream import Upstream
from tests.flows.epp_process import PATIENCE_S, EppProcess
from tests.flows.harness import Setting, endpoint_arguments, start_all, start_envoy, start_upstreams, wait_until

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
PATIENT = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, admin: {peerTimeout: 30s}}"
STARTS = 5
"""Another program may take a port between the moment it was found free and the moment it is used."""


async def call(
    epp: EppProcess, method: str, endpoint: str, action: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and content of a drain call."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=4 * PATIENCE_S)) as session,
        session.request(method, f"http://{epp.metrics}/api/v1/endpoints/{endpoint}/{action}", headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_drained_server_gets_nothing_new_and_the_wait_ends_with_its_last_stream() -> None:
    async with start_all(2) as scene:
        leaving, staying = scene.upstreams
        with scene.gates_closed():
            async with scene.at_once(4, "/held", body=BODY) as streams:
                status, told = await call(scene.epp, "POST", leaving.endpoint, "drain?keep=10m")
                assert (status, told["state"], told["in_flight_requests"]) == (200, "draining", 2)
                async with scene.at_once(6, "/held", body=BODY) as later:
                    assert (leaving.active_requests, staying.active_requests) == (2, 8)
                    status, told = await call(scene.epp, "GET", leaving.endpoint, "drained?timeout=100ms")
                    assert (status, told["in_flight_requests"]) == (202, 2)
                    waiting = asyncio.create_task(call(scene.epp, "GET", leaving.endpoint, "drained?timeout=60s"))
                    scene.open_gates()
                    answers = await asyncio.gather(*streams, *later)
                    status, told = await waiting
        assert (status, told["in_flight_requests"]) == (200, 0)
        assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)

        status, told = await call(scene.epp, "POST", leaving.endpoint, "undrain")
        assert (status, told["state"]) == (200, "ready")
        assert scene.epp.log_records("error") == []


async def test_what_a_drain_costs_is_measured() -> None:
    """One stream ends well after first sight, one is cut by its client."""
    async with start_all(1) as scene:
        (server,) = scene.upstreams
        with scene.gates_closed():
            async with scene.at_once(1, "/held", body=BODY) as whole:
                async with scene.at_once(1, "/held", body=BODY):
                    await call(scene.epp, "POST", server.endpoint, "drain")

                async def is_cut() -> bool:
                    return await scene.epp.metric("epp_endpoint_drain_cut_requests_total") == 1

                await wait_until(is_cut, "the stream of the client that left to count as cut")
                scene.open_gates()
                await asyncio.gather(*whole)
        await scene.epp.wait_idle()
        _, text = await scene.epp.get("/api/v1/drains")
        (drain,) = msgspec.json.decode(text)["drains"]
        assert (drain["endpoint"], drain["in_flight_requests"], drain["cut_requests"]) == (server.endpoint, 2, 1)
        assert (drain["seen_by"], drain["late_picks"], drain["last_pick_s"], drain["over"]) == ("call", 0, 0, False)
        assert drain["last_stream_s"] > 0
        assert await scene.epp.metric("epp_recommended_min_wait_seconds") == 1
        await call(scene.epp, "POST", server.endpoint, "undrain")
        assert await scene.epp.metric("epp_endpoint_drain_seconds_count", phase="last_stream") == 1


async def test_a_mark_to_keep_ends_by_itself() -> None:
    async with start_upstreams(1) as (server,), EppProcess("--endpoint", server.endpoint) as epp:
        await call(epp, "POST", server.endpoint, "drain?keep=1ms")

        async def is_ready() -> bool:
            return bool((await epp.pool())[server.endpoint]["state"] == "ready")

        await wait_until(is_ready, "the mark to end")
        (line,) = [record for record in epp.log_records() if record["event"] == "drain mark ended"]
    assert line["endpoint"] == server.endpoint


async def test_endpoints_elsewhere_need_the_token_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    async with EppProcess("--endpoint", "10.255.255.1:8000", "--admin-token-file", str(file)) as epp:
        assert (await call(epp, "POST", "10.255.255.1:8000", "drain"))[0] == 403
        assert (await call(epp, "POST", "10.255.255.1:8000", "drain", {"authorization": "Bearer wrong"}))[0] == 403
        assert (await call(epp, "POST", "10.255.255.1:8000", "drain", {"authorization": "Bearer s3cret"}))[0] == 200
        assert "s3cret" not in epp.log_text()


async def test_a_pipe_in_place_of_the_token_ends_the_start_with_2(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    epp = EppProcess("--endpoint", "127.0.0.1:1", "--admin-token-file", str(tmp_path / "pipe"), ready=False)
    with pytest.raises(AssertionError, match="found exit code 2"):
        await epp.__aenter__()
    assert "--admin-token-file: expected a regular file" in epp.log_text()


async def test_a_pipe_that_takes_the_place_of_the_token_later_hangs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    async with EppProcess("--endpoint", "10.255.255.1:8000", "--admin-token-file", str(file)) as epp:
        file.unlink()
        os.mkfifo(file)
        assert (await call(epp, "POST", "10.255.255.1:8000", "drain", {"authorization": "Bearer s3cret"}))[0] == 200
        epp.terminate()
        assert await epp.wait() == 0


@pytest.mark.parametrize("arguments", [("--peer", "https://10.0.0.1:9090"), ("--peer", "a b:1"), ("--peers-dns", "name")])
async def test_names_of_replicas_that_are_none_end_the_start_with_2(arguments: tuple[str, str]) -> None:
    epp = EppProcess("--endpoint", "127.0.0.1:1", *arguments, ready=False)
    with pytest.raises(AssertionError, match="found exit code 2"):
        await epp.__aenter__()
    assert f"{arguments[0]}: expected " in epp.log_text()


async def test_sigterm_ends_a_wait_with_the_count() -> None:
    async with start_all(1) as scene:
        (server,) = scene.upstreams
        with scene.gates_closed():
            async with scene.at_once(1, "/held", body=BODY):
                waiting = asyncio.create_task(call(scene.epp, "GET", server.endpoint, "drained?timeout=60s"))
                await asyncio.sleep(0)
                scene.epp.terminate()
                status, told = await waiting
        assert (status, told["in_flight_requests"]) == (202, 1)


# ── two replicas ──


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def replica(upstreams: list[Upstream], own_port: int, other_port: int) -> EppProcess:
    """One of two replicas, each of which names both, as a headless Service does."""
    peers = [word for port in (own_port, other_port) for word in ("--peer", f"http://127.0.0.1:{port}")]
    arguments = (*endpoint_arguments(upstreams), "--metrics-port", str(own_port), *peers, "--config-text", PATIENT)
    return EppProcess(*arguments, ready=False)


async def start_replicas(stack: AsyncExitStack, upstreams: list[Upstream]) -> tuple[EppProcess, EppProcess]:
    """Two pickers that know of one another, for as long as `stack`."""
    for _ in range(STARTS):
        one, other = free_port(), free_port()
        try:
            first = await stack.enter_async_context(replica(upstreams, one, other))
            second = await stack.enter_async_context(replica(upstreams, other, one))
        except AssertionError:
            continue
        await asyncio.gather(first.wait_ready(), second.wait_ready())
        return first, second
    raise AssertionError(f"expected two free ports, found none in {STARTS} tries")


@asynccontextmanager
async def two_replicas(count: int) -> AsyncIterator[tuple[Setting, Setting]]:
    """Two pickers of the same model servers, each with an Envoy of its own."""
    async with AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(start_upstreams(count))
        pickers = await start_replicas(stack, upstreams)
        scenes = [Setting(await stack.enter_async_context(start_envoy(epp.grpc.port)), epp, upstreams) for epp in pickers]
        yield scenes[0], scenes[1]


async def test_a_call_at_one_replica_stops_the_picks_of_both_and_waits_for_the_requests_of_both() -> None:
    async with two_replicas(2) as (first, second):
        leaving, staying = first.upstreams
        with first.gates_closed():
            async with first.at_once(2, "/held", body=BODY) as of_first, second.at_once(2, "/held", body=BODY) as of_second:
                status, told = await call(first.epp, "POST", leaving.endpoint, "drain?keep=10m")
                assert status == 200
                assert told["peers"] == {str(second.epp.metrics): {"in_flight_requests": 1, "state": "draining"}}
                async with second.at_once(4, "/held", body=BODY) as later:
                    assert (leaving.active_requests, staying.active_requests) == (2, 6)
                    status, told = await call(first.epp, "GET", leaving.endpoint, "drained?timeout=0s")
                    assert (status, told["in_flight_requests"], told["own_in_flight_requests"]) == (202, 2, 1)
                    waiting = asyncio.create_task(call(first.epp, "GET", leaving.endpoint, "drained?timeout=60s"))
                    first.open_gates()
                    answers = await asyncio.gather(*of_first, *of_second, *later)
                    status, told = await waiting
        assert (status, told["in_flight_requests"]) == (200, 0)
        assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)


async def test_a_replica_that_starts_again_still_knows_what_drains() -> None:
    async with AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(start_upstreams(2))
        first, second = await start_replicas(stack, upstreams)
        leaving = upstreams[0].endpoint
        await call(first, "POST", leaving, "drain?keep=10m")
        await second.kill()
        again = await stack.enter_async_context(replica(upstreams, second.metrics.port, first.metrics.port))
        await again.wait_ready()
        assert (await again.pool())[leaving]["state"] == "draining"
        assert (await again.pool())[upstreams[1].endpoint]["state"] == "ready"


async def test_a_replica_that_hangs_keeps_no_hook_from_its_answer() -> None:
    """A hook gives up both its calls after 2 s, and would then go by the engine's page alone, or by nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        peer = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        async with (
            EppProcess("--endpoint", "127.0.0.1:1", "--peer", peer) as epp,
            aiohttp.ClientSession() as client,
        ):
            plan = DrainPlan(engine="vllm", url="http://127.0.0.1:1")
            hook = PickerCalls(client, f"http://{epp.metrics}", "127.0.0.1:1", keep_s=plan.keep_s, token=None)

            async def is_told() -> bool:
                return isinstance(await hook.sample(plan.call_s), Told)

            await wait_until(is_told, "the hook to hear how many requests are known to run")


async def test_a_replica_that_crashed_is_named_in_the_answer_and_counted() -> None:
    async with two_replicas(1) as (first, second):
        (server,) = first.upstreams
        await call(first.epp, "POST", server.endpoint, "drain")
        await second.epp.kill()
        status, told = await call(first.epp, "POST", server.endpoint, "drain")
        assert status == 200
        assert told["peers"][str(second.epp.metrics)]["error"].startswith("no answer")
        assert (await first.epp.metric("epp_peer_call_failures_total") or 0) >= 1
