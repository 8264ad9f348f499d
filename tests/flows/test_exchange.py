"""The exchange itself, seen by a client that is not Envoy: subset hint, who really served, order and ends."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import msgspec
import pytest
import pytest_asyncio

from tests.fakes.ext_proc_client import ExtProcClient, destination
from tests.fakes.upstream import Upstream
from tests.flows.harness import EppProcess, start_direct, start_upstreams

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.both_transports]


class Direct:
    """A picker of four endpoints, and a client that asks it directly."""

    def __init__(self, epp: EppProcess, client: ExtProcClient, upstreams: list[Upstream]) -> None:
        self.epp = epp
        self.client = client
        self.endpoints = [upstream.endpoint for upstream in upstreams]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["socket", "grpcio"])
async def direct(request: pytest.FixtureRequest) -> AsyncIterator[Direct]:
    """One picker a transport for all tests here; each leaves no count behind."""
    async with start_upstreams(4) as upstreams, start_direct(upstreams, "--transport", request.param) as (epp, client):
        yield Direct(epp, client, upstreams)
        await epp.wait_idle()
        assert epp.log_records("error") == []


async def test_without_a_subset_hint_every_endpoint_is_used(direct: Direct) -> None:
    """Field report 12."""
    assert set(await direct.client.picks(100)) == set(direct.endpoints)


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_subset_hint_limits_the_picks(direct: Direct, as_text: bool) -> None:
    """Field report 12: as a list or as one text with commas; unknown addresses in it do no harm."""
    allowed = direct.endpoints[:2]
    hint = [*allowed, "10.255.255.1:8000"]

    picks = await direct.client.picks(60, subset=", ".join(hint) if as_text else hint)

    assert set(picks) == set(allowed)


async def test_a_subset_hint_may_name_addresses_without_ports(direct: Direct) -> None:
    """Field report 12."""
    assert set(await direct.client.picks(100, subset=["127.0.0.1"])) == set(direct.endpoints)


@pytest.mark.parametrize("subset", ["", [], "10.255.255.1:8000", ["127.0.0.1:1"], ["127.0.0.2"]])
async def test_a_subset_hint_without_overlap_is_503_and_never_a_pick_outside(direct: Direct, subset: str | list[str]) -> None:
    """Field report 12: empty is not the same as absent."""
    assert await direct.client.picks(3, subset=subset) == {"503 subset_empty": 3}


async def test_a_subset_hint_holds_for_requests_with_a_body(direct: Direct) -> None:
    stream = direct.client.stream()
    await stream.send_headers(subset=direct.endpoints[3:])
    await stream.send_body(b'{"model": "m"}', end_of_stream=True)
    reply = await stream.read()
    await stream.close()

    assert reply is not None
    assert destination(reply) == direct.endpoints[3]


async def in_flight(direct: Direct) -> dict[str, int]:
    """Endpoints with requests in flight."""
    pool = await direct.epp.pool()
    return {address: e["in_flight_requests"] for address, e in pool.items() if e["in_flight_requests"]}


async def test_the_count_moves_to_the_endpoint_that_really_served(direct: Direct) -> None:
    """What Envoy says in the response's metadata is believed over the pick, and counted as a mismatch."""
    before = await direct.epp.metric("epp_served_mismatch_total") or 0
    stream = direct.client.stream()
    await stream.send_headers(end_of_stream=True, subset=direct.endpoints[:1])
    await stream.read()
    picked = await in_flight(direct)
    await stream.send_response_headers(served=direct.endpoints[2])
    await stream.read()
    served = await in_flight(direct)
    await stream.close()

    assert picked == {direct.endpoints[0]: 1}
    assert served == {direct.endpoints[2]: 1}
    assert await direct.epp.metric("epp_served_mismatch_total") == before + 1
    await direct.epp.wait_idle()


async def test_serving_as_picked_is_no_mismatch(direct: Direct) -> None:
    before = await direct.epp.metric("epp_served_mismatch_total") or 0
    stream = direct.client.stream()
    await stream.send_headers(end_of_stream=True, subset=direct.endpoints[:1])
    await stream.read()
    await stream.send_response_headers(served=direct.endpoints[0])
    await stream.read()
    served = await in_flight(direct)
    await stream.close()

    assert served == {direct.endpoints[0]: 1}
    assert (await direct.epp.metric("epp_served_mismatch_total") or 0) == before


async def test_the_picker_does_not_end_a_call_that_the_client_keeps_open(direct: Direct) -> None:
    """Field report 18: some Envoys throw away an answer whose stream was ended from the other side."""
    stream = direct.client.stream()
    await stream.send_headers()
    await stream.send_body(b'{"model": "m"}', end_of_stream=True)
    replies = [await stream.read(), await stream.read()]
    await stream.send_response_headers(end_of_stream=True)
    replies.append(await stream.read())
    further = asyncio.ensure_future(stream.read())
    await asyncio.wait([further], timeout=1.0)
    ended_early = further.done()
    code = await stream.close()
    await further

    assert all(replies)
    assert not ended_early
    assert code is grpc.StatusCode.OK


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"hello"])
async def test_bytes_that_are_no_message_end_their_own_call_only(direct: Direct, garbage: bytes) -> None:
    healthy, broken = direct.client.stream(), direct.client.stream()
    await healthy.send_headers()
    await broken.call.write(garbage)
    code = await broken.call.code()
    await healthy.send_body(b"{}", end_of_stream=True)
    reply = await healthy.read()
    await healthy.close()

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert reply is not None
    assert destination(reply) in direct.endpoints


async def test_what_comes_after_the_first_end_mark_is_ignored(direct: Direct) -> None:
    stream = direct.client.stream()
    await stream.send_headers()
    await stream.send_body(b'{"model": "m"}', end_of_stream=True)
    await stream.send_body(b"more", end_of_stream=True)
    await stream.call.done_writing()
    replies = []
    while reply := await stream.read():
        replies.append(reply)

    assert len(replies) == 2
    assert replies[1].request_body is not None


async def test_200_resets_right_after_the_pick_are_normal_ends(direct: Direct) -> None:
    """Field reports 17 and 46: no error in the log, none in the metrics, no count left."""
    failed = await direct.epp.failed_requests()
    for _ in range(200):
        stream = direct.client.stream()
        await stream.send_headers(end_of_stream=True)
        assert await stream.read()
        stream.call.cancel()
    await direct.epp.wait_idle()

    assert await direct.epp.failed_requests() == failed
    assert direct.epp.log_records("error") == []


async def test_recent_decisions_can_be_looked_up(direct: Direct) -> None:
    """Why a request went where it went: by its id, with the scores of every candidate, the newest first."""
    stream = direct.client.stream()
    await stream.send_headers({"x-request-id": "look-me-up"}, end_of_stream=True, subset=direct.endpoints[:2])
    reply = await stream.read()
    await stream.close()
    assert reply is not None
    _, text = await direct.epp.get("/api/v1/picks?limit=1")
    (decision,) = msgspec.json.decode(text)["picks"]

    assert decision["request_id"] == "look-me-up"
    assert decision["endpoints"] == [destination(reply)]
    assert {candidate["endpoint"] for candidate in decision["candidates"]} == set(direct.endpoints[:2])
    assert decision["error"] is None
