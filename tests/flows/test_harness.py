"""The harness itself: a test that hangs or leaves processes behind would hide what the other flow tests find."""

import asyncio

import pytest

from tests.fakes.http1_client import connect, fetch
from tests.fakes.upstream import Upstream
from tests.flows.harness import Setting, start_all, wait_until


async def test_waiting_for_a_condition_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"expected within 0\.05 s: the moon to fall"):
        await wait_until(lambda: False, "the moon to fall", timeout_s=0.05)


async def test_the_upstream_says_what_it_received(upstreams: list[Upstream]) -> None:
    answer = await fetch("127.0.0.1", upstreams[0].port, "/x", pieces=[b"a", b"bc"], trailers=[("x-t", "1")])

    assert answer.json()["body_bytes"] == 3
    assert answer.json()["trailers"] == [["x-t", "1"]]
    assert upstreams[0].received[0].body == b"abc"


async def test_the_client_sees_gaps_and_trailers(upstreams: list[Upstream]) -> None:
    port = upstreams[0].port
    loop = asyncio.get_running_loop()
    upstreams[0].steps.release()
    # Each event is made 50 ms after the one before has arrived.
    events = await fetch(
        "127.0.0.1", port, "/steps", body=b"", on_piece=lambda _: loop.call_later(0.05, upstreams[0].steps.release)
    )
    trailers = await fetch("127.0.0.1", port, "/trailers", body=b"")

    assert len(events.gaps_s) == 5
    assert min(events.gaps_s[:4]) > 0.045  # [DONE] comes with the last event
    assert trailers.trailers == [("x-checksum", "abc123")]


async def test_the_upstream_notices_a_client_that_went_away(upstreams: list[Upstream]) -> None:
    async with connect("127.0.0.1", upstreams[0].port) as connection:
        await connection.send("/sse?events=1000000&gap_ms=20", body=b"")
        await wait_until(lambda: upstreams[0].active_requests == 1, "the request to arrive")
        connection.reset()
        await wait_until(lambda: upstreams[0].cut_requests == 1, "the upstream to notice")

    assert upstreams[0].active_requests == 0


async def test_an_upstream_can_crash_and_come_back_on_its_port(upstreams: list[Upstream]) -> None:
    server = upstreams[0]
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await fetch("127.0.0.1", server.port, "/x", body=b"")
    await server.start()

    assert (await fetch("127.0.0.1", server.port, "/x", body=b"")).status == 200


async def test_a_whole_scene_serves_a_request_and_counts_it_off() -> None:
    async with start_all(2) as scene:
        answer = await fetch(scene.listen.host, scene.listen.port, "/v1/completions", body=b'{"model": "m", "prompt": "x"}')
        await wait_until(lambda: _is_idle(scene), "the count to go back to zero")
        endpoints = set(await scene.epp.pool())
        scene.epp.terminate()
        code = await scene.epp.wait()

    assert answer.status == 200
    assert endpoints == {upstream.endpoint for upstream in scene.upstreams}
    assert code == 0


async def _is_idle(scene: Setting) -> bool:
    return await scene.epp.in_flight() == 0
