"""Answers that stream: passed on at once and untouched, counted until they end, read for token usage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode
from tests.fakes.http1 import head_bytes, read_head
from tests.flows.harness import PATIENCE_S, EppProcess, Setting, start_all, start_envoy, wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.both_transports]

FULL = BodyMode.FULL_DUPLEX_STREAMED
UNBUFFERED = [BodyMode.NONE, BodyMode.STREAMED, FULL]
READ = [BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, FULL]
CHAT = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Setting]:
    """A picker and two model servers; the Envoy is the default one."""
    async with start_all(2) as scene:
        yield scene
        await scene.epp.wait_idle()
        assert scene.epp.log_records("error") == []


@pytest.mark.parametrize("mode", UNBUFFERED)
async def test_each_event_of_an_answer_is_passed_on_before_the_next_one_exists(pool: Setting, mode: BodyMode) -> None:
    """The model server makes an event only after the client has the one before, so anything held back would stop all."""
    async with (
        start_envoy(pool.epp.grpc.port, request_body_mode=FULL, response_body_mode=mode) as envoy,
        Setting(envoy, pool.epp, pool.upstreams).connect() as client,
    ):
        await client.send("/steps", body=CHAT)
        async with asyncio.timeout(PATIENCE_S):
            head = await client.reader.readuntil(b"\r\n\r\n")  # before the first event exists
        await wait_until(lambda: pool.active_requests == 1, "this request alone at the model servers")
        for number in range(5):
            (busy,) = [upstream for upstream in pool.upstreams if upstream.active_requests]
            busy.steps.release()
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.readuntil(f"token {number}".encode())
        async with asyncio.timeout(PATIENCE_S):
            await client.reader.readuntil(b"[DONE]")

    assert head.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in head


@pytest.mark.parametrize("mode", UNBUFFERED)
async def test_events_keep_their_time(pool: Setting, mode: BodyMode) -> None:
    """The gaps between events stay what they were at the model server, if they are longer than this machine stands still."""
    async with start_envoy(pool.epp.grpc.port, response_body_mode=mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        for gap_s in (0.15, 0.5, 1.5, 5.0):
            answer = await scene.fetch(f"/sse?events=5&gap_ms={gap_s * 1000:.0f}", body=CHAT)
            if len(answer.pieces) == 6 and sorted(answer.gaps_s)[2] > 0.7 * gap_s:
                break
        await pool.epp.wait_idle()

    assert len(answer.pieces) == 6, "each event comes by itself"
    assert sorted(answer.gaps_s)[2] > 0.7 * gap_s, "most gaps are there, even if the machine stood still once"


@pytest.mark.parametrize("mode", READ)
async def test_token_usage_is_read_from_streamed_and_whole_answers(pool: Setting, mode: BodyMode) -> None:
    """Field reports 72 and 73: what the last event says of usage is in the metrics, however Envoy hands it over."""
    names = ("llm_d_epp_request_input_tokens_sum", "llm_d_epp_request_output_tokens_sum")
    before = [await pool.epp.metric(name, model_name="m") or 0.0 for name in names]
    async with start_envoy(pool.epp.grpc.port, response_body_mode=mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        assert (await scene.fetch("/sse?events=3&gap_ms=1", body=CHAT)).status == 200
        assert (await scene.fetch(body=b'{"model": "m", "prompt": "x"}')).status == 200
        await pool.epp.wait_idle()

        async def are_counted() -> bool:
            return [await pool.epp.metric(name, model_name="m") or 0.0 for name in names] == [before[0] + 20, before[1] + 10]

        await wait_until(are_counted, "10 prompt and 5 output tokens of both answers")


@pytest.mark.parametrize("mode", UNBUFFERED)
async def test_a_stream_is_counted_until_it_ends(pool: Setting, mode: BodyMode) -> None:
    """Field report 48: the answer's headers are not its end, also where the picker does not see the answer's body."""
    async with start_envoy(pool.epp.grpc.port, response_body_mode=mode) as envoy, AsyncExitStack() as stack:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        clients = [await stack.enter_async_context(scene.connect()) for _ in range(4)]
        with scene.gates_closed():
            async with asyncio.timeout(PATIENCE_S):
                for client in clients:
                    await client.send("/held", body=CHAT)
                    await client.reader.readuntil(b"token 0")
            for _ in range(10):  # the count stays
                assert await scene.epp.in_flight() == 4
            assert scene.shares() == [2, 2]
        async with asyncio.timeout(PATIENCE_S):
            for client in clients:
                await client.reader.readuntil(b"[DONE]")
        await scene.epp.wait_idle()


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, FULL])
async def test_a_websocket_passes_both_ways(pool: Setting, mode: BodyMode) -> None:
    """Its bytes are a body without an end: nobody may wait for it."""
    upgrade = [("host", "pool.test"), ("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
    async with (
        start_envoy(pool.epp.grpc.port, request_body_mode=mode, response_body_mode=mode) as envoy,
        Setting(envoy, pool.epp, pool.upstreams).connect() as client,
        asyncio.timeout(PATIENCE_S),
    ):
        client.writer.write(head_bytes("GET /ws HTTP/1.1", upgrade))
        head = await read_head(client.reader)
        for message in (b"one", b"two" * 30_000):
            client.writer.write(message)
            assert await client.reader.readexactly(len(message)) == message
        in_flight = await pool.epp.in_flight()

    assert head is not None
    assert head.start.startswith("HTTP/1.1 101")
    assert in_flight == 1
    await pool.epp.wait_idle()


async def test_an_answer_that_breaks_off_ends_the_count(pool: Setting) -> None:
    """Field report 46: a model server that dies in the middle leaves nothing behind."""
    answers = await asyncio.gather(*(pool.fetch_cut(body=CHAT) for _ in range(20)))
    await pool.epp.wait_idle()

    assert all(answer.cut for answer in answers)


class _Tokens(grpc.GenericRpcHandler):
    """A gRPC model server: `/Generate` streams two tokens, `/Refuse` answers with a status in the headers."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/inference.Model/Generate":
            return grpc.stream_stream_rpc_method_handler(self._generate)
        if details.method == "/inference.Model/Refuse":
            return grpc.unary_unary_rpc_method_handler(self._refuse)
        return None

    @staticmethod
    async def _generate(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        piece: Any = await context.read()
        while piece is not grpc.aio.EOF:
            await context.write(piece.upper())
            piece = await context.read()
        context.set_trailing_metadata((("x-tokens", "2"),))

    @staticmethod
    async def _refuse(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no slots")


@asynccontextmanager
async def start_grpc_upstream() -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Tokens(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, FULL])
async def test_grpc_calls_pass_with_their_status_in_trailers(mode: BodyMode) -> None:
    """Messages in both directions one by one, the status in trailers, and a status without any message."""
    async with (
        start_grpc_upstream() as port,
        EppProcess("--endpoint", f"127.0.0.1:{port}") as epp,
        start_envoy(epp.grpc.port, request_body_mode=BodyMode.STREAMED, response_body_mode=mode, upstream_http2=True) as envoy,
        grpc.aio.insecure_channel(str(envoy.listener())) as channel,
    ):
        generate: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/inference.Model/Generate")
        call = generate(timeout=PATIENCE_S)
        replies = []
        for piece in (b"one", b"two" * 50_000):
            await call.write(piece)
            replies.append(await call.read())
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        code, trailers = await call.code(), await call.trailing_metadata()
        refuse: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/inference.Model/Refuse")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await refuse(b"x" * 100_000, timeout=PATIENCE_S)
        await epp.wait_idle()

    assert replies == [b"ONE", b"TWO" * 50_000]
    assert code is grpc.StatusCode.OK
    assert ("x-tokens", "2") in tuple(trailers or ())
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no slots")


async def test_a_grpc_call_passes_in_full_duplex_in_both_directions() -> None:
    """The pick waits for the end of the request, then everything passes."""
    async with (
        start_grpc_upstream() as port,
        EppProcess("--endpoint", f"127.0.0.1:{port}") as epp,
        start_envoy(epp.grpc.port, upstream_http2=True) as envoy,
        grpc.aio.insecure_channel(str(envoy.listener())) as channel,
    ):
        generate: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/inference.Model/Generate")
        replies = [reply async for reply in generate(iter([b"one", b"two"]), timeout=PATIENCE_S)]

    assert replies == [b"ONE", b"TWO"]
