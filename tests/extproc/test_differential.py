"""Whatever one transport answers, the other answers too: random calls to both, compared message by message."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from epp.config.settings import LimitSettings
from epp.errors import NoEndpointError
from epp.extproc.grpcio_transport import GrpcioTransport
from epp.extproc.health import Health
from epp.extproc.names import EXT_PROC_SERVICE
from epp.extproc.socket_transport import SocketTransport
from epp.lifecycle import Lifecycle
from epp.pb.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
)
from epp.pool.model_rewrites import RewriteRule, RewriteTarget
from tests.extproc.exchange import Bench
from tests.extproc.test_socket_transport import Connections
from tests.patience import PATIENCE_S

CALLS = 120
RULES = [RewriteRule("r", ("m",), (RewriteTarget("a-longer-name", 1),))]
BODIES = (b"", b"{}", b'{"model": "m"}', b'{"x": "%s", "model": "m"}' % (b"x" * 70_000), bytes(70_000), bytes(130_000), b"\xff")


def random_headers(rng: random.Random) -> HttpHeaders:
    known = (":path", ":status", "content-type", "content-length", "content-encoding", "upgrade", "x-request-id", "x")
    pairs = [(name, rng.choice(("", "5", "200", "/v1/completions", "gzip", "999999"))) for name in rng.sample(known, 4)]
    values = [HeaderValue(key=k, raw_value=v.encode()) for k, v in pairs]
    return HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=rng.random() < 0.2)


def random_message(rng: random.Random) -> bytes:
    """Any message that Envoy may send, in any order, and sometimes bytes that are none."""
    body = HttpBody(body=rng.choice(BODIES), end_of_stream=rng.random() < 0.3)
    kind = rng.randrange(20)
    if kind < 3:
        message = ProcessingRequest(request_headers=random_headers(rng))
        message.protocol_config.request_body_mode = rng.randrange(5)  # type: ignore[assignment]
        message.protocol_config.response_body_mode = rng.randrange(5)  # type: ignore[assignment]
    elif kind < 9:
        message = ProcessingRequest(request_body=body)
    elif kind < 10:
        message = ProcessingRequest(request_trailers=HttpTrailers())
    elif kind < 13:
        message = ProcessingRequest(response_headers=random_headers(rng))
    elif kind < 17:
        message = ProcessingRequest(response_body=body)
    elif kind < 18:
        message = ProcessingRequest(response_trailers=HttpTrailers())
    elif kind < 19:
        message = ProcessingRequest()
    else:
        return b"\xff\xff"
    return message.SerializeToString()


def random_calls() -> Iterator[tuple[list[bytes], bool]]:
    """The messages of each call, and whether the pool is empty; a few are requests as they should be."""
    rng = random.Random(20261130)
    for _ in range(CALLS):
        first = ProcessingRequest(request_headers=random_headers(rng))
        if rng.random() < 0.8:
            first.protocol_config.request_body_mode = rng.randrange(5)  # type: ignore[assignment]
        messages = [first.SerializeToString()] if rng.random() < 0.9 else []
        if rng.random() < 0.3:
            messages.append(ProcessingRequest(request_body=HttpBody(body=BODIES[3], end_of_stream=True)).SerializeToString())
        yield [*messages, *(random_message(rng) for _ in range(rng.randrange(7)))], rng.random() < 0.1


def answers_of(channel: grpc.Channel, messages: list[bytes]) -> tuple[list[bytes], grpc.StatusCode]:
    """All answers to a call that sends `messages` and closes its side, by the client that does not mind an early end."""
    method: Any = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")
    call = method(iter(messages), timeout=PATIENCE_S)
    answers = []
    with contextlib.suppress(grpc.RpcError):
        answers.extend(call)
    return answers, call.code()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rules", [[], RULES])
async def test_random_calls_get_the_same_answers_from_both_transports(rules: list[RewriteRule]) -> None:
    benches = [Bench(max_body=200_000, max_buffered=1 << 20, rules=rules) for _ in range(2)]
    ours = SocketTransport(benches[0].exchange, Health(Lifecycle()), observer=Connections())
    reference = GrpcioTransport(benches[1].exchange, Health(Lifecycle()))
    ports = [(await t.listen("127.0.0.1", 0, limits=LimitSettings(), tls=None))[1] for t in (ours, reference)]
    seen = 0
    with (
        grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as one,
        grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as two,
    ):
        for messages, empty in random_calls():
            for bench in benches:
                bench.error = NoEndpointError("pool 'p' is empty") if empty else None
            ours_said = await asyncio.to_thread(answers_of, one, messages)
            reference_said = await asyncio.to_thread(answers_of, two, messages)
            assert ours_said == reference_said, messages
            seen += len(ours_said[0])
    async with asyncio.timeout(PATIENCE_S):
        while any(bench.observer.counts["ended"] < CALLS for bench in benches):
            await asyncio.sleep(0.005)  # the client hears of the end of a call before the session does
    await ours.stop(1.0)
    await reference.stop(1.0)
    assert seen > CALLS
    for bench in benches:
        assert bench.budget.held_bytes == 0
        assert all(pick.releases for pick in bench.picks)
    assert len(benches[0].picks) == len(benches[1].picks)
    counts = [bench.observer.counts["rewritten by r: m to a-longer-name"] for bench in benches]
    assert counts[0] == counts[1]
    assert counts[0] > 3 if rules else not counts[0]
    assert [o.error_code for o in benches[0].observer.outcomes] == [o.error_code for o in benches[1].observer.outcomes]
