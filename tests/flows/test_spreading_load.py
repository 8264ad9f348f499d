"""Where requests go, as the model servers see it: choosing and counting are one step, and scrapes do not undo it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode
from tests.flows.harness import (
    EppProcess,
    Setting,
    endpoint_arguments,
    patient_health_check,
    start_all,
    start_envoy,
    start_pair,
    start_upstreams,
    wait_until,
    write_endpoints,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = b'{"model": "m", "prompt": "' + b"the same beginning for everybody; " * 200 + b'"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eight() -> AsyncIterator[Setting]:
    """Eight model servers whose metrics say zero for ever."""
    async with start_all(8) as scene:
        yield scene


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_64_requests_at_once_spread_evenly_over_8_servers(eight: Setting, mode: BodyMode) -> None:
    """Field report 49: picks that are made together do not all see the same idle server."""
    async with start_envoy(eight.epp.grpc.port, request_body_mode=mode) as envoy:
        scene = Setting(envoy, eight.epp, eight.upstreams)
        with scene.gates_closed():
            async with scene.at_once(64, body=PROMPT) as requests:
                shares = scene.shares()
                scene.open_gates()
                answers = await asyncio.gather(*requests)
        await scene.epp.wait_idle()

    assert sum(shares) == 64
    assert all(6 <= share <= 10 for share in shares), shares
    assert all(answer.status == 200 for answer in answers)


async def test_idle_servers_take_turns(eight: Setting) -> None:
    """Field report 49: equal scores do not always break the same way, also for requests on one connection."""
    async with eight.connect() as client:
        servers = [(await client.request(body=PROMPT)).json()["server"] for _ in range(240)]

    assert len(set(servers)) == 8


async def test_80_long_requests_stay_even_while_the_metrics_say_zero(eight: Setting) -> None:
    """Field report 50: a scrape never erases what the picker itself has outstanding."""
    with eight.gates_closed():
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(eight.at_once(10, "/held", body=PROMPT))
                await eight.epp.wait_scraped()
            shares = eight.shares()
            counted = [endpoint["in_flight_requests"] for endpoint in (await eight.epp.pool()).values()]
        await eight.epp.wait_idle()

    assert shares == [10] * 8
    assert sorted(counted) == sorted(shares)


async def test_a_server_with_ten_streams_is_avoided_though_its_metrics_say_zero(tmp_path: Path) -> None:
    """Field report 48: streams are counted until they end."""
    file = tmp_path / "endpoints.json"
    async with start_upstreams(3) as upstreams:
        others = upstreams[1:]
        write_endpoints(file, upstreams, draining=others)
        async with start_pair(upstreams, "--endpoints-file", str(file)) as scene:
            with scene.gates_closed():
                async with scene.at_once(10, "/held", body=PROMPT):
                    assert scene.shares() == [10, 0, 0]
                    write_endpoints(file, upstreams)
                    await wait_until(lambda: _all_ready(scene.epp), "all endpoints to be ready")
                    await scene.epp.wait_scraped()
                    async with scene.at_once(10, "/held", body=PROMPT):
                        shares = scene.shares()

    assert shares[0] == 10
    assert min(shares[1:]) >= 3, shares


async def _all_ready(epp: EppProcess) -> bool:
    return all(endpoint["state"] == "ready" for endpoint in (await epp.pool()).values())


async def test_after_a_restart_the_reported_load_steers() -> None:
    """Field report 51: the new picker has counted nothing, but the server's metrics tell of 40 jobs."""
    async with start_upstreams(3) as upstreams, AsyncExitStack() as stack:
        endpoints = endpoint_arguments(upstreams)
        first = await stack.enter_async_context(EppProcess(*endpoints))
        envoy = await stack.enter_async_context(start_envoy(first.grpc.port))
        upstreams[0].running_requests = 40
        await first.kill()
        second = await stack.enter_async_context(EppProcess(*endpoints, "--grpc-port", str(first.grpc.port)))
        scene = Setting(envoy, second, upstreams)
        await wait_until(lambda: _serves(scene), "Envoy to reach the new picker")
        with scene.gates_closed():
            async with scene.at_once(20, body=PROMPT):
                shares = scene.shares()

    assert shares == [0, 10, 10]


async def _serves(scene: Setting) -> bool:
    return (await scene.fetch(body=PROMPT)).status == 200


@pytest.mark.parametrize("waiting", [False, True])
async def test_reported_load_of_others_is_added_to_the_own_count(eight: Setting, waiting: bool) -> None:
    """A queue or running requests that came by another way count as well."""
    loaded = eight.upstreams[:4]
    for upstream in loaded:
        upstream.running_requests, upstream.waiting_requests = 8, 8 * waiting
    try:
        await eight.epp.wait_scraped()
        with eight.gates_closed():
            async with eight.at_once(28, body=PROMPT):
                shares = eight.shares()
    finally:
        for upstream in loaded:
            upstream.running_requests = upstream.waiting_requests = 0
        await eight.epp.wait_idle()
        await eight.epp.wait_scraped()

    assert shares[:4] == [0, 0, 0, 0]
    assert shares[4:] == [7, 7, 7, 7]


async def test_two_pickers_together_keep_the_load_even() -> None:
    """Field report 52: each one sees the other's requests in the metrics."""
    async with start_upstreams(8) as upstreams:
        for upstream in upstreams:
            upstream.counts_itself = True
        endpoints = endpoint_arguments(upstreams)
        async with (
            EppProcess(*endpoints) as first,
            EppProcess(*endpoints) as second,
            start_envoy(first.grpc.port, second.grpc.port, adapt=patient_health_check) as envoy,
        ):
            scene = Setting(envoy, first, upstreams)
            with scene.gates_closed():
                async with AsyncExitStack() as stack:
                    for _ in range(8):
                        await stack.enter_async_context(scene.at_once(8, "/held", body=PROMPT))
                        await asyncio.gather(first.wait_scraped(), second.wait_scraped())
                    shares = scene.shares()
                    own = [await first.in_flight(), await second.in_flight()]

    assert sum(own) == sum(shares) == 64
    assert min(own) >= 16, "both pickers take part"
    assert max(shares) / (sum(shares) / len(shares)) <= 1.6, shares


async def test_weights_scale_the_load(tmp_path: Path) -> None:
    """A server of weight 2 gets about twice as much."""
    file = tmp_path / "endpoints.yaml"
    async with start_upstreams(2) as upstreams:
        lines = [
            f"- {{name: {u.name}, address: {u.host}, port: {u.port}, weight: {w}}}"
            for u, w in zip(upstreams, (2, 1), strict=True)
        ]
        file.write_text("endpoints:\n" + "\n".join(lines) + "\n")
        async with start_pair(upstreams, "--endpoints-file", str(file)) as scene:
            with scene.gates_closed():
                async with scene.at_once(30, body=PROMPT):
                    shares = scene.shares()

    assert shares in ([20, 10], [21, 9], [19, 11])
