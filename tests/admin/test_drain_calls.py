"""Drain calls of one replica."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from epp.lifecycle import Phase
from epp.pool.endpoint import EndpointAddress, EndpointSpec, EndpointState, endpoint_address
from tests.admin.running import Admin, serving

PATIENCE_S = 90.0
OWN = "127.0.0.1:8000"
OF_OWN = f"/api/v1/endpoints/{OWN}"

pytestmark = pytest.mark.timeout(300)


def own(port: int = 8000, **changes: Any) -> EndpointSpec:
    return EndpointSpec(address=endpoint_address("127.0.0.1", port), name=f"own-{port}", **changes)


async def call(admin: Admin, method: str, path: str) -> tuple[int, Any]:
    async with admin.client.request(method, path) as answer:
        assert answer.content_type == "application/json"
        return answer.status, await answer.json()


async def test_a_drain_call_stops_picks_and_says_what_still_runs() -> None:
    async with serving() as admin:
        admin.pool.sync([own(), own(8001)])
        admin.pool.count_pick(admin.pool.endpoints[0])

        status, told = await call(admin, "POST", f"{OF_OWN}/drain")

        assert status == 200
        assert (told["endpoint"], told["state"], told["in_flight_requests"], told["peers"]) == (OWN, "draining", 1, {})
        assert [e.address for e in admin.pool.ready] == ["127.0.0.1:8001"]
        _, pool = await call(admin, "GET", "/api/v1/pool")
    shown = pool["endpoints"][0]
    assert (shown["state"], shown["reason"]) == ("draining", "a drain call asked for it")


async def test_an_undrain_call_takes_it_back() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        await call(admin, "POST", f"{OF_OWN}/drain")
        status, told = await call(admin, "POST", f"{OF_OWN}/undrain")
        assert (status, told["state"]) == (200, "ready")
        assert len(admin.pool.ready) == 1
        status, told = await call(admin, "POST", f"{OF_OWN}/undrain")
        assert (status, told["state"]) == (200, "ready")


async def test_an_undrain_call_does_not_overrule_discovery() -> None:
    async with serving() as admin:
        admin.pool.sync([own(draining=True)])
        await call(admin, "POST", f"{OF_OWN}/drain")
        _, told = await call(admin, "POST", f"{OF_OWN}/undrain")
    assert (told["state"], told["reason"]) == ("draining", "marked as draining")


async def test_a_mark_to_keep_ends_so_long_after_the_last_call() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        await call(admin, "POST", f"{OF_OWN}/drain?keep=10m")
        admin.clock.advance(599)
        await call(admin, "POST", f"{OF_OWN}/drain?keep=10m")
        admin.clock.advance(599)
        assert admin.pool.end_marks() == []
        _, told = await call(admin, "GET", "/api/v1/drains")
        (mark,) = told["marks"]
        assert (mark["endpoint"], mark["since_s"], mark["ends_in_s"]) == (OWN, 1198, 1)
        admin.clock.advance(1)
        assert len(admin.pool.end_marks()) == 1
        assert (await call(admin, "GET", "/api/v1/drains"))[1]["marks"] == []


async def test_what_was_measured_of_the_last_drains_can_be_read() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        assert (await call(admin, "GET", "/api/v1/drains"))[1]["recommended_min_wait_s"] is None
        (endpoint,) = admin.pool.endpoints
        admin.pool.count_pick(endpoint)
        await call(admin, "POST", f"{OF_OWN}/drain")
        admin.clock.advance(2)
        admin.pool.count_moved(endpoint)
        admin.clock.advance(5)
        admin.pool.count_release(endpoint)
        admin.pool.count_release(endpoint, cut=True)
        _, told = await call(admin, "GET", "/api/v1/drains")
    assert told["recommended_min_wait_s"] == 5.0
    (drain,) = told["drains"]
    assert drain == {
        "endpoint": OWN, "incarnation": "", "name": "own-8000", "seen_by": "call", "reason": "a drain call asked for it",
        "at": 1_700_001_000.0, "times": 1, "in_flight_requests": 1, "late_picks": 1, "last_pick_s": 2.0, "last_stream_s": 7.0,
        "cut_requests": 1, "over": False,
    }  # fmt: skip


async def test_repeated_calls_are_one_line_in_the_log() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        for _ in range(3):
            await call(admin, "POST", f"{OF_OWN}/drain?keep=1m")
    (line,) = admin.logged.getvalue().splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["endpoint"], logged["by"], logged["keep_s"]) == ("drain call", OWN, "127.0.0.1", 60.0)


@pytest.mark.parametrize(
    ("method", "path", "parameter"),
    [
        ("POST", f"{OF_OWN}/drain?keep=abc", "keep"),
        ("POST", f"{OF_OWN}/drain?keep=", "keep"),
        ("POST", f"{OF_OWN}/drain?keep=0s", "keep"),
        ("POST", f"{OF_OWN}/drain?keep=-1s", "keep"),
        ("POST", f"{OF_OWN}/drain?keep=1s&keep=2s", "keep"),
        ("POST", f"{OF_OWN}/drain?keep={'9' * 400}h", "keep"),
        ("POST", f"{OF_OWN}/drain?keep=8785h", "keep"),
        ("POST", f"{OF_OWN}/drain?kepe=1s", "kepe"),
        ("POST", f"{OF_OWN}/undrain?keep=1s", "keep"),
        ("GET", f"{OF_OWN}/drained?timeout=61s", "timeout"),
        ("GET", f"{OF_OWN}/drained?timeout=5", "timeout"),
        ("POST", "/api/v1/endpoints/127.0.0.1/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/127.0.0.1:0/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/127.0.0.1:65536/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/localhost:8000/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/::1:8000/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/%20:8000/drain", "endpoint"),
        ("POST", "/api/v1/endpoints/127.0.0.1:٨٠٠٠/drain", "endpoint"),
    ],
)
async def test_malformed_calls_are_refused_naming_what_is_wrong(method: str, path: str, parameter: str) -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        status, told = await call(admin, method, path)
        assert (status, told["error"]["parameter"]) == (400, parameter)
        assert "expected" in told["error"]["message"]
        assert len(told["error"]["message"]) < 300
        assert admin.pool.endpoints[0].mark is None


async def test_an_endpoint_that_is_not_in_the_pool_is_unknown() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        for method, action in (("POST", "drain"), ("POST", "undrain"), ("GET", "drained")):
            status, told = await call(admin, method, f"/api/v1/endpoints/127.0.0.1:8001/{action}")
            assert (status, told["error"]["code"]) == (404, "unknown_endpoint")


async def test_an_endpoint_that_left_with_requests_can_be_drained_and_waited_for() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        (endpoint,) = admin.pool.endpoints
        admin.pool.count_pick(endpoint)
        admin.pool.sync([])
        status, told = await call(admin, "POST", f"{OF_OWN}/drain")
        assert (status, told["state"], told["in_flight_requests"]) == (200, "draining", 1)
        status, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=0s")
        assert (status, told["in_flight_requests"]) == (202, 1)
    assert admin.logged.getvalue() == "", "a hook repeats its call, and no mark is left each time"


async def test_an_idle_endpoint_is_drained_at_once() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        await call(admin, "POST", f"{OF_OWN}/drain")
        status, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=60s")
    assert (status, told["endpoint"], told["state"], told["in_flight_requests"]) == (200, OWN, "draining", 0)


async def test_the_wait_ends_with_the_last_request() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        (endpoint,) = admin.pool.endpoints
        admin.pool.count_pick(endpoint)
        admin.pool.count_pick(endpoint)
        await call(admin, "POST", f"{OF_OWN}/drain")
        waiting = asyncio.create_task(call(admin, "GET", f"{OF_OWN}/drained?timeout=60s"))
        await until_watched(admin)
        admin.pool.count_release(endpoint)
        admin.pool.count_release(endpoint)
        async with asyncio.timeout(PATIENCE_S):
            status, told = await waiting
    assert (status, told["in_flight_requests"]) == (200, 0)


async def test_when_the_time_is_up_the_answer_is_the_count() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        admin.pool.count_pick(admin.pool.endpoints[0])
        status, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=20ms")
    assert (status, told["in_flight_requests"], told["own_in_flight_requests"]) == (202, 1, 1)


async def test_a_shutdown_ends_the_wait_with_the_count() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        admin.pool.count_pick(admin.pool.endpoints[0])
        waiting = asyncio.create_task(call(admin, "GET", f"{OF_OWN}/drained?timeout=60s"))
        await until_watched(admin)
        admin.lifecycle.enter(Phase.DRAINING)
        async with asyncio.timeout(PATIENCE_S):
            status, told = await waiting
            assert (status, told["in_flight_requests"]) == (202, 1)
            status, _ = await call(admin, "GET", f"{OF_OWN}/drained?timeout=60s")
            assert status == 202


async def test_a_client_that_goes_away_waits_no_longer() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        admin.pool.count_pick(admin.pool.endpoints[0])
        _, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(f"GET {OF_OWN}/drained?timeout=60s HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await until_watched(admin)
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            while admin.watched():
                await asyncio.sleep(0)


async def test_those_that_wait_are_bounded_and_keep_nobody_out() -> None:
    async with serving() as admin:
        admin.pool.sync([own()])
        admin.pool.count_pick(admin.pool.endpoints[0])
        waiting = [asyncio.create_task(call(admin, "GET", f"{OF_OWN}/drained?timeout=60s")) for _ in range(20)]
        await until_watched(admin, 20)
        async with asyncio.timeout(PATIENCE_S):
            status, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=60s")
            assert (status, told["in_flight_requests"]) == (202, 1)
            async with admin.client.get("/readyz") as ready:
                assert ready.status == 200
            admin.pool.count_release(admin.pool.endpoints[0])
            assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
            admin.pool.count_pick(admin.pool.endpoints[0])
            again = asyncio.create_task(call(admin, "GET", f"{OF_OWN}/drained?timeout=60s"))
            await until_watched(admin)
            admin.pool.count_release(admin.pool.endpoints[0])
            assert (await again)[0] == 200


async def test_any_endpoint_can_be_waited_for_with_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    async with serving(token_file=file) as admin:
        admin.pool.sync([EndpointSpec(address=EndpointAddress("10.0.0.1:8000"), name="other")])
        path = "/api/v1/endpoints/10.0.0.1:8000/drained?timeout=0s"
        async with admin.client.get(path, headers={"authorization": "Bearer s3cret"}) as answer:
            assert answer.status == 200
    assert admin.pool.endpoints[0].state is EndpointState.READY


async def until_watched(admin: Admin, times: int = 1) -> None:
    """Until so many requests wait for the endpoints of the pool."""
    async with asyncio.timeout(PATIENCE_S):
        while admin.watched() < times:
            await asyncio.sleep(0)
