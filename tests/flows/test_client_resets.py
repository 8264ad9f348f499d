"""Clients that go away, at any moment: the counts return to zero, nobody calls it an error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode
from epp.envoy.process import EnvoyProcess
from tests.fakes.http1_client import Connection
from tests.flows.harness import PATIENCE_S, EppProcess, Setting, start_all, start_envoy, wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.both_transports]

FULL = BodyMode.FULL_DUPLEX_STREAMED
CLIENTS = 40
CHAT = b'{"model": "m", "stream": true, "prompt": "hello"}'
HALF_SENT = b"POST /v1/completions HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 100000\r\n\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Setting]:
    """A picker and three model servers; the Envoy is the default one."""
    async with start_all(3) as scene:
        yield scene


@asynccontextmanager
async def start_scene(pool: Setting, mode: BodyMode) -> AsyncIterator[Setting]:
    """The pool behind an Envoy of this mode; at the end no count, no error and no failed request is left."""
    failed_before = await pool.epp.failed_requests()
    async with start_envoy(pool.epp.grpc.port, request_body_mode=mode) as envoy:
        yield Setting(envoy, pool.epp, pool.upstreams)
        await wait_until(lambda: _open_streams(envoy, 0), "every ext_proc stream to end")
    await pool.epp.wait_idle()
    assert await pool.epp.metric("epp_buffered_bytes") == 0
    assert pool.epp.log_records("error") == []
    assert await pool.epp.failed_requests() == failed_before


@asynccontextmanager
async def clients(scene: Setting) -> AsyncIterator[list[Connection]]:
    """Connections that reset at the end; then every count must go, long before the picker gives up on a body."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(scene.connect()) for _ in range(CLIENTS)]
        yield connections
        for connection in connections:
            connection.reset()
        await scene.epp.wait_idle()


async def _open_streams(envoy: EnvoyProcess, count: int) -> bool:
    """Whether Envoy has so many ext_proc streams open."""
    stats = await envoy.stats("cluster.endpoint_picker.upstream_rq_active")
    return stats["cluster.endpoint_picker.upstream_rq_active"] == count


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_clients_that_leave_after_their_headers_leave_no_count(pool: Setting, mode: BodyMode) -> None:
    """Field reports 17 and 46: before the pick, or just after it, by mode."""
    async with start_scene(pool, mode) as scene, clients(scene) as connections:
        for connection in connections:
            connection.writer.write(HALF_SENT)
        await wait_until(lambda: _open_streams(scene.envoy, CLIENTS), "a stream for each client")


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_clients_that_leave_in_the_middle_of_their_body_leave_no_count(pool: Setting, mode: BodyMode) -> None:
    """Field reports 17 and 46: held bytes return as well."""
    async with start_scene(pool, mode) as scene, clients(scene) as connections:
        for connection in connections:
            connection.writer.write(HALF_SENT + b"x" * 10_000)
        await wait_until(lambda: _open_streams(scene.envoy, CLIENTS), "a stream for each client")
        if mode is FULL:
            await wait_until(lambda: _holds(scene.epp, CLIENTS * 10_000), "the picker to hold every half")


async def _holds(epp: EppProcess, size: int) -> bool:
    return await epp.metric("epp_buffered_bytes") == size


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_clients_that_leave_while_they_wait_for_the_answer_leave_no_count(pool: Setting, mode: BodyMode) -> None:
    """Field reports 17 and 46: after the pick, before the answer."""
    with pool.gates_closed():
        async with start_scene(pool, mode) as scene, clients(scene) as connections:
            for connection in connections:
                await connection.send(body=CHAT)
            await wait_until(lambda: scene.active_requests == CLIENTS, "every request at a model server")
            assert await scene.epp.in_flight() == CLIENTS


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_clients_that_leave_in_the_middle_of_a_stream_leave_no_count(pool: Setting, mode: BodyMode) -> None:
    """Field reports 17 and 46."""
    with pool.gates_closed():
        async with start_scene(pool, mode) as scene, clients(scene) as connections:
            await asyncio.gather(*(_read_first_event(connection) for connection in connections))
            assert await scene.epp.in_flight() == CLIENTS


async def _read_first_event(connection: Connection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await connection.send("/held", body=CHAT)
        await connection.reader.readuntil(b"token 0")


async def test_clients_that_leave_right_after_the_end_mark_are_successes(pool: Setting) -> None:
    """Field report 74: `[DONE]` ends the request; its count goes at once, not when somebody hangs up."""
    name = "llm_d_epp_request_duration_seconds_count"
    done_before = await pool.epp.metric(name) or 0
    async with start_scene(pool, FULL) as scene, clients(scene) as connections:
        async with asyncio.timeout(PATIENCE_S):
            for connection in connections:
                await connection.send("/done", body=CHAT)
            for connection in connections:
                await connection.reader.readuntil(b"[DONE]")
        await scene.epp.wait_idle()
        assert await _open_streams(scene.envoy, CLIENTS)
    assert await pool.epp.metric(name) == done_before + CLIENTS


@dataclass(frozen=True, slots=True)
class Ending:
    """One way for a request to end.

    Attributes:
        path: What the model server does.
        prepare: Changes the model servers before.
        restore: Changes them back.
        status: What the client sees.
    """

    path: str
    status: int
    prepare: Callable[[Setting], None] = lambda _: None
    restore: Callable[[Setting], None] = lambda _: None


def _set_status(status: int) -> Callable[[Setting], None]:
    def change(scene: Setting) -> None:
        for upstream in scene.upstreams:
            upstream.status = status

    return change


ENDINGS = {
    "a good answer": Ending("/v1/completions", 200),
    "an answer of status 500": Ending("/v1/completions", 500, _set_status(500), _set_status(200)),
    "an answer of status 429": Ending("/v1/completions", 429, _set_status(429), _set_status(200)),
    "an answer that breaks off": Ending("/cut", 200),
    "a stream": Ending("/sse?events=3&gap_ms=1", 200),
    "trailers": Ending("/trailers", 200),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_counts_return_to_zero_after_every_kind_of_ending(pool: Setting, name: str) -> None:
    """Field report 46."""
    ending = ENDINGS[name]
    ending.prepare(pool)
    try:
        if ending.path == "/cut":
            answers = await asyncio.gather(*(pool.fetch_cut(body=CHAT) for _ in range(CLIENTS)))
        else:
            answers = await asyncio.gather(*(pool.fetch(ending.path, body=CHAT) for _ in range(CLIENTS)))
    finally:
        ending.restore(pool)

    assert {answer.status for answer in answers} == {ending.status}
    await pool.epp.wait_idle()
    assert pool.epp.log_records("error") == []


async def test_refused_connections_leave_no_count(pool: Setting) -> None:
    """Field report 46: Envoy answers 503 in the model server's place."""
    for upstream in pool.upstreams:
        await upstream.stop()
    try:
        answers = await asyncio.gather(*(pool.fetch(body=CHAT) for _ in range(CLIENTS)))
        await pool.epp.wait_idle()
    finally:
        for upstream in pool.upstreams:
            await upstream.start()

    assert {answer.status for answer in answers} == {503}
    assert pool.epp.log_records("error") == []


async def test_an_envoy_that_ends_leaves_no_count(pool: Setting) -> None:
    """Field report 46: all its streams end with its connections."""
    with pool.gates_closed():
        async with start_envoy(pool.epp.grpc.port) as envoy:
            scene = Setting(envoy, pool.epp, pool.upstreams)
            async with scene.at_once(CLIENTS, "/held", body=CHAT):
                assert await scene.epp.in_flight() == CLIENTS
                await envoy.stop()
                await scene.epp.wait_idle()
    assert pool.epp.log_records("error") == []
