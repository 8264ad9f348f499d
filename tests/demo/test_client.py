"""The client of the demo, against a server that does what the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.clock import SystemClock
from epp.demo.client import Client
from epp.demo.tally import Ending, Outcome, Tally
from epp.demo.traffic import PlannedRequest, plan_traffic

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ANSWER = {"choices": [{"finish_reason": "stop", "message": {"content": "the"}}]}


def request(*, streaming: bool = False, at_s: float = 0.0) -> PlannedRequest:
    return PlannedRequest(number=0, at_s=at_s, streaming=streaming, messages=(), answer_tokens=1)


@asynccontextmanager
async def client_of(handler: Handler, patience_s: float = 60.0) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    async with (
        TestServer(app) as server,
        Client(str(server.make_url("")).rstrip("/"), model="m", clock=SystemClock(), patience_s=patience_s) as client,
    ):
        yield client


async def outcome_of(handler: Handler, *, streaming: bool = False, patience_s: float = 60.0) -> Outcome:
    async with client_of(handler, patience_s) as client:
        return await client.send(request(streaming=streaming))


def streaming_handler(*pieces: bytes, cut: bool = False) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-sim-name": "a"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handle


async def test_an_answer_is_counted_with_the_server_that_gave_it() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert (await request.json())["model"] == "m"
        return web.json_response(ANSWER, headers={"x-sim-name": "a"})

    began_s = SystemClock().monotonic_s()
    outcome = await outcome_of(handle)

    assert (outcome.ending, outcome.server, outcome.seen, outcome.first_byte_s) == (Ending.ANSWERED, "a", "", None)
    assert 0 < outcome.duration_s < SystemClock().monotonic_s() - began_s


async def test_a_stream_is_answered_at_its_end_mark() -> None:
    outcome = await outcome_of(streaming_handler(b'data: {"x"', b":1}\n\ndata: [DO", b"NE]\n\n"), streaming=True)

    assert (outcome.ending, outcome.server) == (Ending.ANSWERED, "a")
    assert outcome.first_byte_s is not None
    assert 0 < outcome.first_byte_s <= outcome.duration_s


async def test_another_status_than_200_is_a_clean_error() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="upstream connect error")

    outcome = await outcome_of(handle)

    assert (outcome.ending, outcome.seen, outcome.server) == (Ending.REFUSED, "503", None)
    assert outcome.ending.clean


async def test_a_connection_that_breaks_in_a_stream_is_a_cut() -> None:
    outcome = await outcome_of(streaming_handler(b"data: {}\n\n", cut=True), streaming=True)

    assert (outcome.ending, outcome.seen) == (Ending.CUT, "stream cut")
    assert outcome.ending.clean


async def test_an_error_event_in_a_stream_is_a_cut() -> None:
    outcome = await outcome_of(streaming_handler(b'data: {"error":{}}\n\ndata: [DONE]\n\n'), streaming=True)

    assert (outcome.ending, outcome.seen) == (Ending.CUT, "error event in the stream")


async def test_a_stream_that_ends_as_if_all_was_well_without_its_end_mark_is_broken() -> None:
    outcome = await outcome_of(streaming_handler(b"data: {}\n\n"), streaming=True)

    assert (outcome.ending, outcome.ending.clean) == (Ending.BROKEN, False)


async def test_a_connection_that_breaks_before_any_status_is_broken() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    outcome = await outcome_of(handle)

    assert (outcome.ending, outcome.ending.clean) == (Ending.BROKEN, False)
    assert outcome.seen.startswith("no status")


async def test_a_200_that_is_no_answer_is_broken() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [{"finish_reason": "abort"}]})

    outcome = await outcome_of(handle)

    assert (outcome.ending, outcome.seen) == (Ending.BROKEN, "200 with finish_reason abort")


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_request_that_nobody_answers_is_hung_when_patience_ends(streaming: bool) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    outcome = await outcome_of(handle, streaming=streaming, patience_s=0.1)

    assert (outcome.ending, outcome.ending.clean) == (Ending.HUNG, False)


async def test_driving_sends_until_it_is_stopped_and_waits_for_the_last_answer() -> None:
    stop = asyncio.Event()
    tally = Tally()

    async def handle(request: web.Request) -> web.StreamResponse:
        if len(tally) >= 5:
            stop.set()
        return web.json_response(ANSWER, headers={"x-sim-name": "a"})

    async with client_of(handle) as client:
        async with asyncio.timeout(60):
            await client.drive(plan_traffic(1, rate_per_s=200), tally.add, stop)
        assert client.open_requests == 0

    assert len(tally) >= 6


async def test_driving_ends_with_its_plan() -> None:
    tally = Tally()

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(ANSWER)

    async with client_of(handle) as client:
        await client.drive(islice(plan_traffic(1, rate_per_s=1000), 7), tally.add, asyncio.Event())

    assert len(tally.outcomes) == 7


async def test_running_streams_are_counted_by_server() -> None:
    go_on = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-sim-name": "a"})
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async with client_of(handle) as client:
        sending = asyncio.create_task(client.send(request(streaming=True)))
        async with asyncio.timeout(60):
            while not client.streams_on["a"]:
                await asyncio.sleep(0)
        go_on.set()
        assert (await sending).ending is Ending.ANSWERED
        assert client.streams_on["a"] == 0
