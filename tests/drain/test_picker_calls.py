"""The calls to an endpoint picker, and what its answers mean."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from epp.drain.idle_watch import NoAnswer, PickerAnswer, Silent, Told, Unknown
from epp.drain.picker_calls import PickerCalls
from tests.fakes.metrics_server import Answer, MetricsServer
from tests.fakes.picker_admin import PickerAdmin, picker_admin
from tests.sim.process import PATIENCE_S

ENDPOINT = "10.0.0.1:8000"


@pytest.fixture
async def admin() -> AsyncIterator[PickerAdmin]:
    async with picker_admin() as admin:
        yield admin


async def ask(url: str, endpoint: str = ENDPOINT, *, token: str | None = None, timeout_s: float = PATIENCE_S) -> PickerAnswer:
    async with aiohttp.ClientSession() as client:
        return await PickerCalls(client, url, endpoint, keep_s=600.0, token=token).sample(timeout_s)


async def test_the_endpoint_is_drained_and_counted(admin: PickerAdmin) -> None:
    admin.in_flight = 3

    assert await ask(admin.url) == Told(3.0)
    assert admin.calls == [
        f"POST /api/v1/endpoints/{ENDPOINT}/drain?keep=600s",
        f"GET /api/v1/endpoints/{ENDPOINT}/drained?timeout=0s",
    ]


async def test_a_picker_without_requests_tells_zero(admin: PickerAdmin) -> None:
    assert await ask(admin.url) == Told(0.0)


async def test_an_ipv6_endpoint_arrives_as_it_is_written(admin: PickerAdmin) -> None:
    assert await ask(admin.url, "[fd00::7]:8000") == Told(0.0)
    assert "[fd00::7]:8000" in admin.calls[0].replace("%5B", "[").replace("%5D", "]")


async def test_the_token_is_shown(admin: PickerAdmin) -> None:
    admin.token = "secret"

    assert await ask(admin.url, token="secret") == Told(0.0)
    refused = await ask(admin.url, token="wrong")
    assert isinstance(refused, Silent)
    assert "403" in refused.why


@pytest.mark.parametrize(("ready", "answer"), [(True, Unknown), (False, Silent)])
async def test_a_picker_that_is_not_ready_need_not_know_the_endpoint(admin: PickerAdmin, ready: bool, answer: type) -> None:
    admin.knows, admin.ready = False, ready

    assert type(await ask(admin.url)) is answer


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b'{"in_flight_requests": -1}', b'{"in_flight_requests": true}', b'{"in_flight_requests": 1e400}',
     b"[" * 60_000, b'{"in_flight_requests": 0}', b"x" * 200_000],
)  # fmt: skip
async def test_not_idle_is_at_least_one_request_whatever_the_body_says(admin: PickerAdmin, body: bytes) -> None:
    async with MetricsServer() as server:
        server.answers["/api/v1/endpoints/10.0.0.1:8000/drain?keep=600s"] = Answer()
        server.answers["/api/v1/endpoints/10.0.0.1:8000/drained?timeout=0s"] = Answer(status=202, body=body)

        assert await ask(f"http://{server.address}") == Told(1.0)


async def test_a_redirect_is_not_followed(admin: PickerAdmin) -> None:
    async with MetricsServer() as server:
        server.answer = Answer(status=307, headers={"location": admin.url})

        assert await ask(f"http://{server.address}", token="secret") == Silent("it answers 307")
    assert admin.calls == []


async def test_an_answer_that_drips_ends_with_the_time() -> None:
    async with MetricsServer() as server:
        server.answer = Answer(body=json.dumps({"in_flight_requests": 0}).encode() * 100, dribble_s=0.01)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await ask(f"http://{server.address}", timeout_s=0.3), NoAnswer)


async def test_a_picker_that_is_not_there_is_silent() -> None:
    async with MetricsServer() as server:
        address = server.address

    assert isinstance(await ask(f"http://{address}"), Silent)
