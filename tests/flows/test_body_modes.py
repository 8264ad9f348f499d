"""Every way in which Envoy can hand over bodies: what the client sent is what the model server gets, and back.

One picker and three model servers serve all of these tests; each pair of modes has an Envoy of its own.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode
from tests.fakes.http1_client import Answer
from tests.fakes.upstream import Received
from tests.flows.harness import PATIENCE_S, Setting, start_all, start_envoy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.both_transports]

FULL = BodyMode.FULL_DUPLEX_STREAMED
MODES = list(BodyMode)
PAIRS = [(mode, response_mode) for mode in MODES for response_mode in MODES]
SIZES_BYTES = (1, 500, 62_001, 5_000_000)
DESTINATION = "x-gateway-destination-endpoint"
HEADERS = [("content-type", "application/json")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Setting]:
    """A picker and three model servers; the Envoy is the default one."""
    async with start_all(3) as scene:
        yield scene
        await scene.epp.wait_idle()
        assert scene.epp.log_records("error") == []


def body_of(size: int) -> bytes:
    """A completions request of about `size` bytes, and exactly that many when there is room for JSON."""
    head, tail = b'{"model": "m", "prompt": "', b'"}'
    text = bytes(range(97, 123)) * (size // 26 + 1)
    room = size - len(head) - len(tail)
    return head + text[:room] + tail if room >= 0 else text[:size]


def check_arrived_whole(scene: Setting, answer: Answer, body: bytes, request: Received) -> None:
    assert answer.status == 200, answer.body
    said = answer.json()
    assert (said["body_bytes"], said["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    picked_by_name = {upstream.name: upstream.endpoint for upstream in scene.upstreams}
    assert request.head.all(DESTINATION) == [picked_by_name[said["server"]]]
    assert request.head.get("content-length") in (None, str(len(body)))


async def check_request_body(scene: Setting, body: bytes, *, chunked: bool) -> None:
    for upstream in scene.upstreams:
        upstream.received.clear()
    pieces = [body[at : at + 40_000] for at in range(0, len(body), 40_000)]
    if chunked:
        answer = await scene.fetch(headers=HEADERS, pieces=pieces)
    else:
        answer = await scene.fetch(headers=HEADERS, body=body)
    (request,) = [request for upstream in scene.upstreams for request in upstream.received]
    check_arrived_whole(scene, answer, body, request)


@pytest.mark.parametrize(("mode", "response_mode"), PAIRS)
async def test_bodies_pass_byte_for_byte_in_every_pair_of_modes(pool: Setting, mode: BodyMode, response_mode: BodyMode) -> None:
    """Field reports 15, 19 and 24: nothing is altered, cut or doubled, and `content-length` is right where it is sent."""
    async with start_envoy(pool.epp.grpc.port, request_body_mode=mode, response_body_mode=response_mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        for size in SIZES_BYTES:
            for chunked in (False, True):
                await check_request_body(scene, body_of(size), chunked=chunked)
        for size in (0, *SIZES_BYTES):
            for query in ("", "&chunked=1"):
                answer = await scene.fetch(f"/bytes?n={size}{query}", body=b"{}")
                assert (answer.status, answer.cut) == (200, False)
                assert answer.body == (bytes(range(256)) * (size // 256 + 1))[:size]
                assert answer.head.get("content-length") in (None, str(size))


@pytest.mark.parametrize("mode", MODES)
async def test_requests_without_a_body_and_trailers_pass_in_every_mode(pool: Setting, mode: BodyMode) -> None:
    """Field report 20: a request without a body gets a pick at once, whatever its method."""
    async with start_envoy(pool.epp.grpc.port, request_body_mode=mode, response_body_mode=mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        for method in ("GET", "DELETE", "OPTIONS", "HEAD"):
            assert (await scene.fetch("/v1/models", method=method)).status == 200
        assert (await scene.fetch(body=b"")).json()["body_bytes"] == 0
        echo = await scene.fetch(headers=HEADERS, pieces=[b'{"model":', b'"m"}'], trailers=[("x-t", "1")])
        answer = await scene.fetch("/trailers", body=b"{}")

    assert (echo.json()["body_bytes"], echo.json()["trailers"]) == (13, [["x-t", "1"]])
    assert (answer.body, answer.trailers) == (b"with trailers", [("x-checksum", "abc123")])


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, FULL])
async def test_a_body_that_comes_in_small_pieces_over_time_arrives_whole(pool: Setting, mode: BodyMode) -> None:
    body = body_of(5_000)
    async with start_envoy(pool.epp.grpc.port, request_body_mode=mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        answer = await scene.fetch(pieces=[body[at : at + 100] for at in range(0, len(body), 100)], gap_s=0.002)

    assert answer.json()["body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_a_partially_buffered_body_over_envoys_limit_arrives_whole(pool: Setting) -> None:
    """The picker sees only the beginning, without an end mark; the rest goes by unseen."""
    async with start_envoy(pool.epp.grpc.port, request_body_mode=BodyMode.BUFFERED_PARTIAL, buffer_limit_bytes=65_536) as envoy:
        for chunked in (False, True):
            await check_request_body(Setting(envoy, pool.epp, pool.upstreams), body_of(1_000_000), chunked=chunked)
    await pool.epp.wait_idle()


async def test_a_buffered_body_over_envoys_limit_is_413_and_leaves_no_count(pool: Setting) -> None:
    async with start_envoy(pool.epp.grpc.port, request_body_mode=BodyMode.BUFFERED, buffer_limit_bytes=65_536) as envoy:
        answer = await Setting(envoy, pool.epp, pool.upstreams).fetch(body=body_of(300_000))

    assert answer.status == 413
    await pool.epp.wait_idle()


async def test_an_early_answer_ends_a_request_whose_body_is_still_coming(pool: Setting) -> None:
    """A model server that refuses on the headers does not wait for the body, of which the end never comes."""
    async with (
        start_envoy(pool.epp.grpc.port, request_body_mode=BodyMode.STREAMED) as envoy,
        Setting(envoy, pool.epp, pool.upstreams).connect() as client,
    ):
        client.writer.write(b"POST /early HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 20000\r\n\r\n" + b"x" * 1000)
        async with asyncio.timeout(PATIENCE_S):
            answer = await client.read_answer(time.monotonic())

    assert answer.json() == {"early": True}
    await pool.epp.wait_idle()


async def test_an_answer_of_48_mib_in_one_message_passes(pool: Setting) -> None:
    """Field report 26: a buffered answer is one gRPC message, far beyond gRPC's default limit of 4 MiB."""
    async with start_envoy(pool.epp.grpc.port, response_body_mode=BodyMode.BUFFERED) as envoy:
        answer = await Setting(envoy, pool.epp, pool.upstreams).fetch(f"/bytes?n={48 << 20}", body=b"{}")

    assert (answer.status, len(answer.body)) == (200, 48 << 20)


async def test_a_buffered_request_of_8_mib_gets_a_pick(pool: Setting) -> None:
    """Field report 26."""
    async with start_envoy(pool.epp.grpc.port, request_body_mode=BodyMode.BUFFERED) as envoy:
        await check_request_body(Setting(envoy, pool.epp, pool.upstreams), body_of(8 << 20), chunked=False)
