"""Real Envoy, and model servers that get another model than the client named, in every body mode and over both transports.

The exchange runs in this process, with rules that a test gives.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from epp.config.settings import LimitSettings
from epp.envoy.options import BodyMode
from epp.envoy.process import EnvoyProcess
from epp.extproc.grpcio_transport import GrpcioTransport
from epp.extproc.health import Health
from epp.extproc.socket_transport import SocketTransport
from epp.lifecycle import Lifecycle
from epp.pool.model_rewrites import RewriteRule, RewriteTarget
from tests.extproc.exchange import Bench
from tests.extproc.test_socket_transport import Connections
from tests.fakes.http1 import chunk_bytes, head_bytes, last_chunk_bytes
from tests.fakes.http1_client import Answer, connect, fetch
from tests.fakes.upstream import Received, Upstream
from tests.flows.harness import PATIENCE_S, start_envoy, wait_until

FULL, BUFFERED, PARTIAL, STREAMED = (
    BodyMode.FULL_DUPLEX_STREAMED,
    BodyMode.BUFFERED,
    BodyMode.BUFFERED_PARTIAL,
    BodyMode.STREAMED,
)
TRANSPORTS = ["socket", "grpcio"]
SIZES_BYTES = (100, 62_001, 400_000, 5_000_000)
LONGER, SHORTER = "llama-3-8b-instruct-canary", "l"
JSON = [("content-type", "application/json")]


def rule(target: str, *models: str) -> RewriteRule:
    return RewriteRule("canary", models, (RewriteTarget(target, 1),))


def body_of(size: int, model: str = "llama") -> bytes:
    """A completions request of about `size` bytes whose model comes last, after text that looks like it."""
    head, tail = b'{"seed":12345678901234567890, "prompt": "\\"model\\": \\"llama\\" ', f'" ,"model" : "{model}"}}'.encode()
    return head + b"llama " * ((size - len(head) - len(tail)) // 6) + tail


@dataclass(slots=True)
class Scene:
    """An Envoy that asks `bench`, which sends everything to `upstream`."""

    bench: Bench
    upstream: Upstream
    envoy: EnvoyProcess

    async def fetch(self, **request: Any) -> tuple[Answer, Received | None]:
        """One request through Envoy, and how the model server saw it."""
        self.upstream.received.clear()
        listen = self.envoy.listener()
        answer = await fetch(listen.host, listen.port, "/v1/completions", headers=JSON, **request)
        return answer, self.upstream.received[0] if self.upstream.received else None


@asynccontextmanager
async def start_scene(mode: BodyMode, *rules: RewriteRule, transport: str = "socket", **envoy: Any) -> AsyncIterator[Scene]:
    """Envoy in this body mode, and the exchange with these rules."""
    async with Upstream() as upstream:
        bench = Bench(max_body=64 << 20, max_buffered=128 << 20, rules=rules, destination=upstream.endpoint)
        health = Health(Lifecycle())
        server = (
            GrpcioTransport(bench.exchange, health)
            if transport == "grpcio"
            else SocketTransport(bench.exchange, health, observer=Connections())
        )
        _, port = await server.listen("127.0.0.1", 0, limits=LimitSettings(), tls=None)
        running = asyncio.create_task(server.run())
        try:
            async with start_envoy(port, request_body_mode=mode, **envoy) as process:
                yield Scene(bench, upstream, process)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await server.stop(0.5)
        assert bench.bugs == []
        assert bench.budget.held_bytes == 0


def check_rewritten(mode: BodyMode, body: bytes, target: str, answer: Answer, request: Received | None) -> None:
    """The model server got the target's name, every other byte as it was, and a length that is right if there is one."""
    assert answer.status == 200, answer.body
    assert request is not None
    assert request.body == body.removesuffix(b'"llama"}') + json.dumps(target).encode() + b"}"
    length = request.head.get("content-length")
    assert length in (None, str(len(request.body)))
    # What this Envoy does by itself: it keeps the header in BUFFERED only.
    assert (length is not None) == (mode is BUFFERED)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", [FULL, BUFFERED, PARTIAL, STREAMED])
async def test_the_model_server_gets_the_new_model_with_the_right_length_in_every_mode(mode: BodyMode, transport: str) -> None:
    """Field report 19: a longer name gives 200 and the right length; a shorter one, too."""
    async with start_scene(mode, rule(LONGER, "llama"), transport=transport, buffer_limit_bytes=8 << 20) as scene:
        for target in (LONGER, SHORTER):
            scene.bench.rewrites.replace([rule(target, "llama")])
            for size in SIZES_BYTES:
                body = body_of(size)
                answer, request = await scene.fetch(body=body)
                check_rewritten(mode, body, target, answer, request)
        assert scene.bench.observer.counts["not inspected: not_rewritten"] == 0


@pytest.mark.parametrize("mode", [FULL, BUFFERED, PARTIAL])
async def test_bodies_without_a_length_are_rewritten_too(mode: BodyMode) -> None:
    async with start_scene(mode, rule(LONGER, "llama"), buffer_limit_bytes=8 << 20) as scene:
        for size in SIZES_BYTES:
            body = body_of(size)
            pieces = [body[at : at + 40_000] for at in range(0, len(body), 40_000)]
            answer, request = await scene.fetch(pieces=pieces)
            assert answer.status == 200
            assert request is not None
            assert request.head.get("content-length") is None
            assert json.loads(request.body) == {**json.loads(body), "model": LONGER}


async def test_a_body_without_a_length_passes_streamed_mode_whole_and_unchanged() -> None:
    async with start_scene(STREAMED, rule(LONGER, "llama")) as scene:
        body = body_of(200_000)
        listen = scene.envoy.listener()
        async with connect(listen.host, listen.port) as client, asyncio.timeout(PATIENCE_S):
            head = [("host", "pool.test"), *JSON, ("transfer-encoding", "chunked")]
            client.writer.write(head_bytes("POST /v1/completions HTTP/1.1", head) + chunk_bytes(body[:40_000]))
            # The model server has the beginning, so the picker has seen some of the body without its end.
            await wait_until(lambda: scene.upstream.active_requests, "the headers at the model server")
            client.writer.write(chunk_bytes(body[40_000:]) + last_chunk_bytes())
            answer = await client.read_answer(0.0)

    assert answer.status == 200
    (request,) = scene.upstream.received
    assert request.body == body
    assert scene.bench.observer.counts["not inspected: not_rewritten"] == 1
    assert len(scene.bench.warnings) == 1


@pytest.mark.parametrize("mode", [FULL, STREAMED])
async def test_trailers_pass_beside_a_rewritten_body(mode: BodyMode) -> None:
    """Without a length STREAMED cannot tell the last chunk when trailers follow: the body passes unchanged, and is not lost."""
    async with start_scene(mode, rule(LONGER, "llama")) as scene:
        body = body_of(1000)
        answer, request = await scene.fetch(pieces=[body[:500], body[500:]], trailers=[("x-t", "1")])

    assert answer.status == 200
    assert request is not None
    assert request.trailers == [("x-t", "1")]
    assert json.loads(request.body) == {**json.loads(body), "model": LONGER if mode is FULL else "llama"}


async def test_a_part_of_a_body_is_rewritten_where_it_names_the_model() -> None:
    """BUFFERED_PARTIAL over Envoy's limit: the rest of the body goes by unseen."""
    async with start_scene(PARTIAL, rule(LONGER, "llama"), buffer_limit_bytes=65_536) as scene:
        rest = b', "prompt": "' + b"x" * 1_000_000 + b'"}'
        answer, request = await scene.fetch(body=b'{"model": "llama"' + rest)
        assert answer.status == 200
        assert request is not None
        assert request.body == b'{"model": "' + LONGER.encode() + b'"' + rest

        late = body_of(1_000_000)
        answer, request = await scene.fetch(body=late)
        assert answer.status == 200
        assert request is not None
        assert request.body == late
        assert scene.bench.observer.counts["not inspected: not_rewritten"] == 1


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_what_no_rule_matches_arrives_as_it_was_sent(mode: BodyMode) -> None:
    async with start_scene(mode, rule(LONGER, "llama"), buffer_limit_bytes=8 << 20) as scene:
        for size in (100, 400_000, 2_500_000):
            body = body_of(size, model="other")
            answer, request = await scene.fetch(body=body)
            assert answer.status == 200
            assert request is not None
            assert request.body == body
            assert request.head.get("content-length") in (None, str(len(body)))
        for odd in (b"", b"{}", b'{"model": "llama"', b"\xff" * 100):
            answer, request = await scene.fetch(body=odd)
            assert answer.status == 200
            assert request is not None
            assert request.body == odd


@pytest.mark.parametrize("mode", [FULL, STREAMED])
async def test_many_requests_at_once_each_get_their_own_body_back(mode: BodyMode) -> None:
    async with start_scene(mode, rule(LONGER, "llama")) as scene:
        rng = random.Random(5)
        listen = scene.envoy.listener()
        bodies = [body_of(rng.randrange(100, 300_000), rng.choice(["llama", "other"])) for _ in range(60)]
        answers = await asyncio.gather(
            *(fetch(listen.host, listen.port, "/v1/completions", headers=JSON, body=body) for body in bodies)
        )

    assert {answer.status for answer in answers} == {200}
    expected = [
        body.removesuffix(b'"llama"}') + b'"' + LONGER.encode() + b'"}' if b': "llama"' in body else body for body in bodies
    ]
    assert sorted(request.body for request in scene.upstream.received) == sorted(expected)
