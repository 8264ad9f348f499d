"""Envoy's side of the exchange, mode by mode, with a picker that is independent of the product.

What is asserted here is what the product relies on; where a newer Envoy behaves otherwise, these tests say so first.
"""

import asyncio
import hashlib
from typing import Any

import grpc
import grpc.aio
import pytest

from epp.envoy.options import BodyMode
from tests.envoy.rig import Rig, start_rig
from tests.fakes.ext_proc_server import Behaviour
from tests.fakes.http1_client import connect
from tests.fakes.upstream import Upstream
from tests.flows.harness import wait_until
from tests.patience import PATIENCE_S

FULL = BodyMode.FULL_DUPLEX_STREAMED
MODES = list(BodyMode)
SIZES_BYTES = (0, 1, 500, 70_000, 5_000_000)


def behaviour(upstream: Upstream, mode: BodyMode = FULL, **more: Any) -> Behaviour:
    """A pick of the upstream, after the whole body where the mode allows that."""
    return Behaviour(destination=upstream.endpoint, hold_headers=mode is FULL, **more)


@pytest.mark.parametrize("response_mode", MODES)
@pytest.mark.parametrize("mode", MODES)
async def test_every_pair_of_modes_carries_every_body(mode: BodyMode, response_mode: BodyMode) -> None:
    async with (
        Upstream() as upstream,
        start_rig(behaviour(upstream, mode), request_body_mode=mode, response_body_mode=response_mode) as rig,
    ):
        for size in SIZES_BYTES:
            body = bytes(range(251)) * (size // 251 + 1)
            await check_echo(rig, body[:size])
        assert len((await rig.fetch("/bytes?n=5000000", body=b"{}")).body) == 5_000_000
        assert (await rig.fetch(method="GET")).status == 200
        assert (await rig.fetch(method="HEAD")).status == 200
        stream = rig.picker.streams[0]

    assert stream.protocol_config is not None
    assert stream.protocol_config.request_body_mode.name == mode.value
    assert stream.protocol_config.response_body_mode.name == response_mode.value


async def check_echo(rig: Rig, body: bytes) -> None:
    answer = await rig.fetch(body=body)
    assert answer.status == 200, len(body)
    assert answer.json()["body_bytes"] == len(body)
    assert answer.json()["body_sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("mode", MODES)
async def test_trailers_pass_in_both_directions(mode: BodyMode) -> None:
    async with (
        Upstream() as upstream,
        start_rig(behaviour(upstream, mode), request_body_mode=mode, response_body_mode=mode) as rig,
    ):
        echo = await rig.fetch(pieces=[b"a" * 1000, b"b" * 1000], trailers=[("x-t", "1")])
        answer = await rig.fetch("/trailers", body=b"{}")

    assert echo.json()["body_bytes"] == 2000
    assert echo.json()["trailers"] == [["x-t", "1"]]
    assert (answer.body, answer.trailers) == (b"with trailers", [("x-checksum", "abc123")])


async def test_with_trailers_no_piece_of_the_body_is_marked_as_the_last() -> None:
    async with Upstream() as upstream, start_rig(behaviour(upstream)) as rig:
        await rig.fetch(pieces=[b"a" * 1000, b"b" * 1000], gap_s=0.05, trailers=[("x-t", "1")])
        stream = await rig.last_stream()

    assert stream.phases[:3] == ["request_headers", "request_body", "request_trailers"]
    assert not any(piece.end_of_stream for piece in stream.body("request_body"))


async def test_full_duplex_marks_the_end_with_an_empty_piece() -> None:
    async with Upstream() as upstream, start_rig(behaviour(upstream)) as rig:
        await rig.fetch(body=b"x" * 100_000)
        pieces = (await rig.last_stream()).body("request_body")

    assert sum(piece.body_bytes for piece in pieces) == 100_000
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].body_bytes == 0


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, FULL])
async def test_streamed_answers_keep_their_time(mode: BodyMode) -> None:
    """Each piece comes through while the server holds the next one back."""
    async with (
        asyncio.timeout(PATIENCE_S),
        Upstream() as upstream,
        start_rig(behaviour(upstream), response_body_mode=mode) as rig,
        connect(rig.listen.host, rig.listen.port) as connection,
    ):
        await connection.send("/steps", body=b"{}")
        for number in range(5):
            upstream.steps.release()
            came = await connection.reader.readuntil(b"token %d" % number)
            assert b"token %d" % (number + 1) not in came
        await connection.reader.readuntil(b"[DONE]")


@pytest.mark.parametrize(
    ("mode", "counts"), [(BodyMode.BUFFERED, True), (BodyMode.BUFFERED_PARTIAL, True), (BodyMode.STREAMED, False)]
)
async def test_a_pick_in_the_reply_to_the_body_counts_only_while_envoy_holds_the_body(mode: BodyMode, counts: bool) -> None:
    async with (
        Upstream() as upstream,
        start_rig(Behaviour(destination=upstream.endpoint, pick_in="request_body"), request_body_mode=mode) as rig,
    ):
        answer = await rig.fetch(pieces=[b"a" * 1000, b"b" * 1000], gap_s=0.05)

    assert answer.status == (200 if counts else 503)


async def test_a_buffered_body_over_the_limit_is_413_and_never_reaches_the_picker() -> None:
    async with (
        Upstream() as upstream,
        start_rig(behaviour(upstream, BodyMode.BUFFERED), request_body_mode=BodyMode.BUFFERED, buffer_limit_bytes=65536) as rig,
    ):
        answer = await rig.fetch(body=b"x" * 300_000)
        stream = await rig.last_stream()

    assert answer.status == 413
    assert stream.body("request_body") == []


async def test_a_partially_buffered_body_over_the_limit_arrives_whole_but_is_seen_in_part() -> None:
    async with (
        Upstream() as upstream,
        start_rig(
            behaviour(upstream, BodyMode.BUFFERED_PARTIAL),
            request_body_mode=BodyMode.BUFFERED_PARTIAL,
            buffer_limit_bytes=65536,
        ) as rig,
    ):
        await check_echo(rig, b"x" * 1_000_000)
        (seen,) = (await rig.last_stream()).body("request_body")

    assert seen.body_bytes < 300_000
    assert not seen.end_of_stream


async def test_envoys_own_answers_reach_the_response_phases() -> None:
    """A refused connection is visible to the picker as a 503 that no endpoint sent."""
    async with start_rig(Behaviour(destination="127.0.0.1:1", hold_headers=True)) as rig:  # nobody listens there
        answer = await rig.fetch(body=b"x")
        stream = await rig.last_stream()

    assert answer.status == 503
    assert stream.response_headers[":status"] == "503"
    assert stream.phases[-2:] == ["response_headers", "response_body"]


async def test_a_list_of_endpoints_in_the_header_is_no_destination() -> None:
    async with Upstream() as upstream, start_rig(Behaviour(destination=f"{upstream.endpoint},127.0.0.1:1")) as rig:
        answer = await rig.fetch(body=b"x")

    assert (answer.status, answer.body) == (503, b"no healthy upstream")


async def test_an_ipv6_endpoint_in_brackets_is_reached() -> None:
    """Field report 11: the brackets are what Envoy wants."""
    async with Upstream(host="::1") as upstream, start_rig(behaviour(upstream)) as rig:
        assert upstream.endpoint.startswith("[::1]:")
        await check_echo(rig, b"x")


@pytest.mark.parametrize("metadata_in", ["request_headers", "request_body", "response_headers"])
async def test_metadata_is_taken_from_any_reply(metadata_in: str) -> None:
    async with (
        Upstream() as upstream,
        start_rig(Behaviour(destination=upstream.endpoint, metadata_in=metadata_in), access_log=True) as rig,
    ):
        await rig.fetch(body=b"x")
        await rig.last_stream()

    assert f"picked={upstream.endpoint}" in rig.envoy.log_text()


@pytest.mark.parametrize("mode", [BodyMode.NONE, FULL])
async def test_pick_only_streams_end_with_the_request(mode: BodyMode) -> None:
    """Field report 32: the ext_proc stream must not live as long as the answer."""
    async with (
        Upstream() as upstream,
        start_rig(behaviour(upstream, mode), request_body_mode=mode, pick_only=True) as rig,
    ):
        upstream.gate.clear()
        answering = asyncio.create_task(rig.fetch("/held", body=b"{}"))
        await wait_until(lambda: upstream.received, "the server to have the request", PATIENCE_S)
        stream = await rig.last_stream()  # while the answer is held
        assert not answering.done()
        upstream.gate.set()
        answer = await answering

    assert answer.body.endswith(b"[DONE]\n\n")
    assert not any(phase.startswith("response") for phase in stream.phases)


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.STREAMED])
async def test_the_message_timeout_holds_where_envoy_has_one(mode: BodyMode) -> None:
    async with (
        Upstream() as upstream,
        start_rig(behaviour(upstream, mode, hold_s=10 * PATIENCE_S), request_body_mode=mode, message_timeout_s=0.1) as rig,
    ):
        assert (await rig.fetch(body=b"x")).status == 504


async def test_full_duplex_has_no_message_timeout() -> None:
    async with Upstream() as upstream, start_rig(behaviour(upstream, hold_s=0.5), message_timeout_s=0.1) as rig:
        assert (await rig.fetch(body=b"x")).status == 200


@pytest.mark.parametrize("path", ["/held", "/x"])
async def test_a_client_that_goes_away_ends_the_stream(path: str) -> None:
    """Nothing else would end it: the server holds the answer, or the picker its first reply."""
    async with Upstream() as upstream, start_rig(behaviour(upstream, hold_s=10 * PATIENCE_S if path == "/x" else 0.0)) as rig:
        upstream.gate.clear()
        async with connect(rig.listen.host, rig.listen.port) as connection:
            await connection.send(path, body=b"{}")
            if path == "/held":
                async with asyncio.timeout(PATIENCE_S):
                    await connection.reader.readuntil(b"token 0")
            await wait_until(lambda: rig.picker.streams, "the stream to begin", PATIENCE_S)
            connection.reset()
        stream = await rig.last_stream()

    assert stream.ended is not None


async def test_an_immediate_answer_reaches_the_client() -> None:
    async with start_rig(Behaviour(status=429)) as rig:
        answer = await rig.fetch(body=b"x" * 200_000)

    assert (answer.status, answer.body) == (429, b'{"error": {}}')


async def test_grpc_passes_to_http2_endpoints() -> None:
    """Bodies and the status in trailers, over HTTP/2 without TLS on both sides."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            start_rig(Behaviour(destination=f"127.0.0.1:{port}"), upstream_http2=True) as rig,
            grpc.aio.insecure_channel(str(rig.listen)) as channel,
        ):
            twice: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/test.Echo/Twice")
            replies = [reply async for reply in twice(b"x" * 100_000, timeout=PATIENCE_S)]
            nothing: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Echo/Nothing")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await nothing(b"", timeout=PATIENCE_S)
    finally:
        await server.stop(None)

    assert replies == [b"x" * 100_000] * 2
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method != "/test.Echo/Twice":
            return None
        return grpc.unary_stream_rpc_method_handler(self._twice)

    @staticmethod
    async def _twice(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(request)
        await context.write(request)
