"""Large bodies and many of them: refused over the limit, memory bounded, and nobody else waits for them."""

import asyncio
import hashlib
import itertools
import time
from typing import Any

import grpc
import msgspec
import pytest

from epp.envoy.options import BodyMode
from tests.fakes.ext_proc_client import ExtProcClient, ExtProcStream, destination, reason
from tests.flows.harness import (
    PATIENCE_S,
    Setting,
    endpoint_arguments,
    start_all,
    start_direct,
    start_envoy,
    start_pair,
    start_upstreams,
    wait_until,
)

pytestmark = pytest.mark.both_transports

KIND = "apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig"
LIMIT_BYTES = 100_000
SMALL_BODIES = f"{{{KIND}, limits: {{maxRequestBodyBytes: {LIMIT_BYTES}}}}}"
BUDGET_BYTES = 16 << 20
STREAM_BYTES = 320 << 10
"""What gRPC itself may hold for a stream: windows of 64 KiB both ways, messages in pieces, what malloc keeps."""
SMALL_BUDGET = f"{{{KIND}, limits: {{maxBufferedBytes: {BUDGET_BYTES}, requestBodyTimeout: 1h}}}}"
ENVOYS_DEFAULT_TIMEOUT_S = 0.2
TRANSPORTS = ["socket", "grpcio"]
READ = [mode for mode in BodyMode if mode is not BodyMode.NONE]


def check_413(answer: Any) -> None:
    assert answer.status == 413
    assert answer.head.get("content-type") == "application/json"
    assert answer.head.get("x-epp-reason") == "body_too_large"
    assert answer.json()["error"]["code"] == "body_too_large"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert str(LIMIT_BYTES) in answer.json()["error"]["message"]


async def test_a_body_over_the_limit_is_413_whether_declared_or_not() -> None:
    """Field reports 25 and 26: with a reason, in every mode in which the picker sees the body."""
    async with start_all(2, epp_arguments=("--config-text", SMALL_BODIES)) as scene:
        for mode in READ:
            async with start_envoy(scene.epp.grpc.port, request_body_mode=mode) as envoy:
                behind = Setting(envoy, scene.epp, scene.upstreams)
                check_413(await behind.fetch(body=b"x" * (LIMIT_BYTES + 1)))
                check_413(await behind.fetch(pieces=[b"x" * 10_000] * 11))
                assert (await behind.fetch(body=b"x" * LIMIT_BYTES)).status == 200
                assert (await behind.fetch(pieces=[b"x" * 10_000] * 10)).status == 200
        await scene.epp.wait_idle()
        held = await scene.epp.metric("epp_buffered_bytes")
        whole = [len(request.body) for upstream in scene.upstreams for request in upstream.received]

    assert held == 0
    assert whole == [LIMIT_BYTES] * 2 * len(READ), "no refused body reached a model server whole"


async def test_a_declared_length_over_the_limit_is_refused_before_any_body_byte() -> None:
    """Field report 25: a single body of 100 MiB, with the default limit."""
    async with (
        start_upstreams(1) as upstreams,
        start_direct(upstreams) as (_, client),
    ):
        stream = client.stream()
        await stream.send_headers({"content-length": str(100 << 20)})
        reply = await stream.read()
        code = await stream.close()

    assert reply is not None
    assert reason(reply) == "413 body_too_large"
    assert code is grpc.StatusCode.OK


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_400_dribbling_bodies_of_a_mebibyte_do_not_fill_the_memory(transport: str) -> None:
    """Field report 25: beyond `limits.maxBufferedBytes` bodies pass through and are picked on their headers."""
    piece = b"x" * 65_536
    async with (
        start_upstreams(4) as upstreams,
        start_direct(upstreams, "--config-text", SMALL_BUDGET, "--transport", transport) as (epp, client),
    ):
        assert await client.pick()
        streams = [client.stream() for _ in range(400)]
        before = epp.rss_bytes()
        await asyncio.gather(*(stream.send_headers() for stream in streams))
        received = [asyncio.create_task(count_received(stream)) for stream in streams]
        for _ in range(16):
            await asyncio.gather(*(stream.send_body(piece) for stream in streams))
        held = await epp.metric("epp_buffered_bytes")
        growth = epp.rss_bytes() - before
        passed_through = await epp.metric("epp_bodies_not_inspected_total", reason="buffers_full")
        await asyncio.gather(*(stream.send_body(b"", end_of_stream=True) for stream in streams))
        sizes = await asyncio.gather(*received)
        await asyncio.gather(*(stream.close() for stream in streams))
        await epp.wait_idle()
        held_afterwards = await epp.metric("epp_buffered_bytes")

    assert held is not None
    assert held <= BUDGET_BYTES
    assert (passed_through or 0) >= 400 - 16
    assert growth < BUDGET_BYTES + 400 * STREAM_BYTES, f"grew by {growth >> 20} MiB for 400 MiB of bodies"
    assert sizes == [16 * len(piece)] * 400
    assert held_afterwards == 0


async def count_received(stream: ExtProcStream) -> int:
    """Bytes of body that come back until the end mark; the pick must come first."""
    reply = await stream.read()
    assert reply is not None
    assert destination(reply)
    size = 0
    while reply := await stream.read():
        assert reply.request_body is not None
        assert reply.request_body.response is not None
        assert reply.request_body.response.body_mutation is not None
        piece = reply.request_body.response.body_mutation.streamed_response
        assert piece is not None
        assert len(piece.body) <= 62_000
        size += len(piece.body)
        if piece.end_of_stream:
            return size
    raise AssertionError("expected an end mark, found the end of the call")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_requests_and_answers_pass_whole_while_the_buffers_are_full(transport: str) -> None:
    """Field report 25: over the budget bodies are not inspected; nothing fails that does not want to be held."""
    configuration = f"{{{KIND}, limits: {{maxBufferedBytes: 200000, requestBodyTimeout: 1h}}}}"
    body = b"x" * 1_000_000
    async with (
        start_all(2, epp_arguments=("--config-text", configuration, "--transport", transport)) as scene,
        scene.connect() as hog,
    ):
        hog.writer.write(b"POST /x HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 150000\r\n\r\n" + b"x" * 149_990)

        async def is_full() -> bool:
            return (await scene.epp.metric("epp_buffered_bytes") or 0) >= 149_990

        await wait_until(is_full, "the buffers to be nearly full")
        up = await asyncio.gather(*(scene.fetch(body=body) for _ in range(10)))
        down = await asyncio.gather(*(scene.fetch("/bytes?n=5000000", body=b"{}") for _ in range(10)))
        hog.writer.write(b"x" * 10)
        held = await hog.read_answer(0.0)
        await scene.epp.wait_idle()
        afterwards = await scene.epp.metric("epp_buffered_bytes")

    assert [answer.status for answer in up] == [200] * 10
    assert {answer.json()["body_sha256"] for answer in up} == {hashlib.sha256(body).hexdigest()}
    assert [(answer.status, len(answer.body)) for answer in down] == [(200, 5_000_000)] * 10
    assert (held.status, held.json()["body_bytes"]) == (200, 150_000)
    assert afterwards == 0


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED])
async def test_the_first_request_and_a_body_of_12_mb_are_answered_within_envoys_default_timeout(mode: BodyMode) -> None:
    """Field report 27: Envoy gives each message 200 ms, then the request fails.

    The picker's CPU time must be less, and Envoy is patient here, for on a busy machine the picker waits for its turn.
    """
    body = b'{"model": "m", "prompt": "' + b"many words " * 1_090_000 + b'"}'
    arguments = ("--config-text", f"{{{KIND}, scrape: {{enabled: false}}}}")
    async with start_all(2, epp_arguments=arguments, request_body_mode=mode, message_timeout_s=PATIENCE_S) as scene:
        cpu_s = [scene.epp.cpu_s()]
        first = await scene.fetch(body=body)
        cpu_s.append(scene.epp.cpu_s())
        small = await scene.fetch(body=b'{"model": "m", "prompt": "x"}')
        cpu_s.append(scene.epp.cpu_s())
        again = await scene.fetch(body=body)
        cpu_s.append(scene.epp.cpu_s())
    before_s = time.process_time()
    msgspec.json.decode(body)
    allowed_s = max(ENVOYS_DEFAULT_TIMEOUT_S, 20 * (time.process_time() - before_s))  # the latter on a slow machine

    assert [answer.status for answer in (first, small, again)] == [200, 200, 200]
    assert max(after - before for before, after in itertools.pairwise(cpu_s)) < allowed_s
    assert first.json()["body_sha256"] == again.json()["body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_small_requests_and_health_are_answered_while_50_bodies_of_4_mb_are_in_flight() -> None:
    """Field report 81: nothing that takes long runs on the loop that answers probes."""
    body = b'{"model": "m", "prompt": "' + b"many words " * 363_000 + b'"}'
    async with (
        start_upstreams(4) as upstreams,
        start_pair(upstreams, *endpoint_arguments(upstreams)) as scene,
        ExtProcClient(str(scene.epp.health)) as probe,
    ):
        large = [asyncio.create_task(scene.fetch(body=body)) for _ in range(50)]
        rounds = meanwhile = 0
        while not all(task.done() for task in large) or rounds < 10:
            async with asyncio.timeout(PATIENCE_S):
                assert await probe.check("liveness") == "SERVING"
                assert await probe.check("readiness") == "SERVING"
                assert (await scene.fetch(body=b'{"model": "m"}')).status == 200
            rounds += 1
            meanwhile += not all(task.done() for task in large)
        answers = await asyncio.gather(*large)
        await scene.epp.wait_idle()
        errors = scene.epp.log_records("error")

    assert meanwhile >= 1
    assert [answer.status for answer in answers] == [200] * 50
    assert {answer.json()["body_bytes"] for answer in answers} == {len(body)}
    assert errors == []


async def test_a_body_that_stops_is_answered_408_and_its_memory_returns() -> None:
    """Field report 16: bounded wait, bounded memory, and the client is told."""
    configuration = f"{{{KIND}, limits: {{requestBodyTimeout: 1s}}}}"
    async with start_all(1, epp_arguments=("--config-text", configuration)) as scene, scene.connect() as client:
        client.writer.write(b"POST /x HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 50000\r\n\r\n" + b"x" * 1000)
        async with asyncio.timeout(PATIENCE_S):
            answer = await client.read_answer(0.0)

        async def is_empty() -> bool:
            return await scene.epp.metric("epp_buffered_bytes") == 0

        await wait_until(is_empty, "the held bytes to return")
        await scene.epp.wait_idle()

    assert answer.status == 408
    assert answer.head.get("x-epp-reason") == "body_timeout"
