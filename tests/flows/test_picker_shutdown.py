"""The picker ends, restarts or crashes, and the traffic goes on."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

import grpc
import pytest
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from epp.envoy.options import BodyMode
from tests.fakes.ext_proc_client import ExtProcClient, reason
from tests.fakes.http1_client import Answer
from tests.flows.harness import (
    PATIENCE_S,
    EppProcess,
    Setting,
    endpoint_arguments,
    patient_health_check,
    picker_cluster,
    start_envoy,
    start_pair,
    start_upstreams,
    wait_until,
)

pytestmark = pytest.mark.both_transports

BODY = b'{"model": "m", "prompt": "x"}'
SMALL_LIMIT = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, limits: {maxRequestBodyBytes: 1000}}"
RATE_PER_S = 50


class Traffic:
    """Requests at a steady rate, each on its own connection: every fifth a stream of about half a second.

    At most `RATE_PER_S` are under way at once, so on a slow machine the rate is less.

    Attributes:
        answers: Those that came, in order of their ends.
        began_s: When the request of each was sent, monotonic.
    """

    def __init__(self, scene: Setting) -> None:
        self.answers: list[Answer] = []
        self.began_s: list[float] = []
        self._scene = scene
        self._running: set[asyncio.Task[None]] = set()
        self._source: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._source = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._source is not None
        self._source.cancel()
        await asyncio.gather(self._source, return_exceptions=True)
        await asyncio.gather(*self._running)

    async def wait_for(self, more: int) -> None:
        """Wait for so many further answers."""
        aim = len(self.answers) + more
        await wait_until(lambda: len(self.answers) >= aim, f"{more} further answers", 4 * PATIENCE_S)

    def begun_after(self, at_s: float) -> list[Answer]:
        """The answers to requests that were sent after this moment."""
        return [answer for answer, began_s in zip(self.answers, self.began_s, strict=True) if began_s > at_s]

    async def _send(self) -> None:
        number = 0
        while True:
            path = "/v1/completions" if number % 5 else "/sse?events=5&gap_ms=100"
            task = asyncio.create_task(self._request(path))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            number += 1
            await asyncio.sleep(1 / RATE_PER_S)
            while len(self._running) >= RATE_PER_S:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def _request(self, path: str) -> None:
        began_s = time.monotonic()
        self.answers.append(await self._scene.fetch(path, body=BODY))
        self.began_s.append(began_s)


@asynccontextmanager
async def start_two_pickers(mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED) -> AsyncIterator[tuple[Setting, EppProcess]]:
    """Two pickers behind one Envoy; the second one is the other value."""
    async with start_upstreams(3) as upstreams:
        endpoints = endpoint_arguments(upstreams)
        async with (
            EppProcess(*endpoints) as first,
            EppProcess(*endpoints) as second,
            start_envoy(first.grpc.port, second.grpc.port, request_body_mode=mode, adapt=patient_health_check) as envoy,
        ):
            yield Setting(envoy, first, upstreams), second


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED])
async def test_a_picker_that_ends_under_load_loses_no_request(mode: BodyMode) -> None:
    """Field report 75: two pickers behind Envoy at 50 requests a second, one of them gets SIGTERM."""
    async with start_two_pickers(mode) as (scene, second), Traffic(scene) as traffic:
        for picker in (scene.epp, second):
            await wait_until(lambda at=picker: at.metric("llm_d_epp_request_total"), "both to take part")  # type: ignore[misc]
        await traffic.wait_for(25)
        scene.epp.terminate()
        code = await scene.epp.wait()
        await traffic.wait_for(25)
    failed = [answer.status for answer in traffic.answers if answer.status != 200 or answer.cut]

    assert code == 0
    assert failed == []
    assert scene.epp.log_records("error") == []


async def test_a_stream_that_comes_a_second_after_sigterm_is_answered() -> None:
    """Field report 75: readiness turns off, liveness stays, those who have not noticed yet are still served.

    A stream keeps the drain from its end for as long as this test takes; after it the picker waits for others.
    """
    async with (
        start_upstreams(1) as upstreams,
        EppProcess("--endpoint", upstreams[0].endpoint) as epp,
        ExtProcClient(str(epp.grpc)) as client,
        ExtProcClient(str(epp.health)) as probe,
    ):
        assert await probe.check("readiness") == "SERVING"
        lasting = client.stream()
        await lasting.send_headers(end_of_stream=True)
        assert await lasting.read()
        epp.terminate()
        await wait_until(lambda: _says(probe, "readiness", "NOT_SERVING"), "readiness to turn off")
        assert await client.check("envoy.service.ext_proc.v3.ExternalProcessor") == "NOT_SERVING"
        assert (await epp.get("/readyz"))[0] == 503
        await asyncio.sleep(1)
        picked = await client.pick()
        assert await probe.check("liveness") == "SERVING"
        assert (await epp.get("/healthz"))[0] == 200
        idle_from_s = time.monotonic()
        assert await lasting.close() is grpc.StatusCode.OK
        code = await epp.wait()
        lasted_s = time.monotonic() - idle_from_s

    assert picked == upstreams[0].endpoint
    assert code == 0
    assert lasted_s > 1.5, "it waits for streams that come a second after it is idle"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGHUP])
async def test_a_key_and_a_terminal_that_closes_end_it_as_gently(by: signal.Signals) -> None:
    async with EppProcess("--endpoint", "127.0.0.1:9") as epp:
        epp.terminate(by)
        code = await epp.wait()
        events = [record["event"] for record in epp.log_records() if record["logger"] == "serve"]

    assert code == 0
    assert events[-3:] == ["drain begins", "drain ended", "stopped"]


async def _says(client: ExtProcClient, service: str, state: str) -> bool:
    return await client.check(service) == state


async def test_what_runs_at_sigterm_ends_whole() -> None:
    """Streams go on to their end, and a body that was still coming is answered."""
    async with (
        start_upstreams(2) as upstreams,
        start_pair(upstreams, *endpoint_arguments(upstreams), "--drain-timeout", "10m") as scene,
        scene.connect() as client,
    ):
        with scene.gates_closed():
            async with scene.at_once(10, "/held", body=BODY) as streams:
                client.writer.write(b"POST /x HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 10\r\n\r\nhello")
                await wait_until(lambda: _holds(scene.epp, 5), "the picker to hold the first half")
                scene.epp.terminate()
                await wait_until(lambda: _is_draining(scene.epp), "the drain to begin")
                client.writer.write(b"world")
                scene.open_gates()
                answers = await asyncio.gather(*streams)
        last = await client.read_answer(time.monotonic())
        code = await scene.epp.wait()
        (ended,) = [record for record in scene.epp.log_records() if record["event"] == "drain ended"]

    assert all(answer.status == 200 and answer.body.endswith(b"[DONE]\n\n") for answer in answers)
    assert (last.status, last.json()["body_bytes"]) == (200, 10)
    assert code == 0
    assert ended["cut_requests"] == 0


async def _is_draining(epp: EppProcess) -> bool:
    return (await epp.get("/readyz"))[0] == 503


async def _holds(epp: EppProcess, size: int) -> bool:
    return await epp.metric("epp_buffered_bytes") == size


async def test_a_stream_that_outlasts_the_drain_timeout_is_cut_and_counted() -> None:
    async with (
        start_upstreams(1) as upstreams,
        start_pair(upstreams, *endpoint_arguments(upstreams), "--drain-timeout", "2s") as scene,
    ):
        with scene.gates_closed():
            async with scene.at_once(1, "/held", body=BODY):
                began_s = time.monotonic()
                scene.epp.terminate()
                code = await scene.epp.wait()
                took_s = time.monotonic() - began_s
        (began,) = [record for record in scene.epp.log_records() if record["event"] == "drain begins"]
        (ended,) = [record for record in scene.epp.log_records() if record["event"] == "drain ended"]

    assert code == 0
    assert began["timeout_s"] == 2
    assert took_s > 1.9
    assert ended["cut_requests"] == 1


async def test_refusals_during_the_drain_reach_their_clients() -> None:
    """Field report 76: a call that ends with an immediate answer is waited for like any other."""
    async with (
        start_upstreams(1) as upstreams,
        EppProcess(*endpoint_arguments(upstreams), "--config-text", SMALL_LIMIT, "--drain-timeout", "10m") as epp,
        ExtProcClient(str(epp.grpc)) as client,
    ):
        streams = [client.stream() for _ in range(20)]
        for stream in streams:
            await stream.send_headers()
            await stream.send_body(b"x" * 500)
        await wait_until(lambda: _holds(epp, 20 * 500), "every half to be there")
        epp.terminate()
        await wait_until(lambda: _is_draining(epp), "the drain to begin")
        for stream in streams:
            await stream.send_body(b"x" * 600)
        replies = [await stream.read() for stream in streams]
        codes = [await stream.close() for stream in streams]
        code = await epp.wait()

    assert [reason(reply) for reply in replies if reply] == ["413 body_too_large"] * 20
    assert codes == [grpc.StatusCode.OK] * 20
    assert code == 0


async def test_a_second_signal_ends_the_drain_at_once_and_the_ports_are_free_again() -> None:
    async with start_upstreams(1) as upstreams, AsyncExitStack() as stack:
        first = await stack.enter_async_context(EppProcess(*endpoint_arguments(upstreams), "--drain-timeout", "1h"))
        client = await stack.enter_async_context(ExtProcClient(str(first.grpc)))
        stream = client.stream()
        await stream.send_headers(end_of_stream=True)
        await stream.read()
        first.terminate()
        await wait_until(lambda: _is_draining(first), "the drain to begin")
        first.terminate()
        assert await first.wait() == 0
        ports = [("--grpc-port", first.grpc), ("--grpc-health-port", first.health), ("--metrics-port", first.metrics)]
        same = [word for flag, address in ports for word in (flag, str(address.port))]
        second = await stack.enter_async_context(EppProcess(*endpoint_arguments(upstreams), *same))
        again = await stack.enter_async_context(ExtProcClient(str(second.grpc)))
        assert second.grpc == first.grpc
        assert await again.pick() == upstreams[0].endpoint


async def test_envoy_finds_a_picker_that_restarted() -> None:
    """A crash, and another picker at the same address: traffic goes on by itself."""
    async with start_upstreams(2) as upstreams, AsyncExitStack() as stack:
        endpoints = endpoint_arguments(upstreams)
        first = await stack.enter_async_context(EppProcess(*endpoints))
        envoy = await stack.enter_async_context(start_envoy(first.grpc.port))
        scene = Setting(envoy, first, upstreams)
        assert (await scene.fetch(body=BODY)).status == 200
        await first.kill()
        assert (await scene.fetch(body=BODY)).status >= 500
        second = await stack.enter_async_context(EppProcess(*endpoints, "--grpc-port", str(first.grpc.port)))
        await wait_until(lambda: _answers(scene), "Envoy to reach the new picker")
        answers = await asyncio.gather(*(scene.fetch(body=BODY) for _ in range(50)))
        await second.wait_idle()

    assert {answer.status for answer in answers} == {200}


async def _answers(scene: Setting) -> bool:
    return (await scene.fetch(body=BODY)).status == 200


async def test_a_picker_that_crashes_is_left_as_soon_as_envoy_knows() -> None:
    """Field report 77: kill -9 of one of two; after that every request is answered by the other one."""
    healthy = "cluster.endpoint_picker.membership_healthy"

    async def is_left() -> bool:
        return (await scene.envoy.stats(healthy))[healthy] == 1

    async with start_two_pickers() as (scene, second), Traffic(scene) as traffic:
        await traffic.wait_for(25)
        await scene.epp.kill()
        before = traffic.answers.copy()
        await wait_until(is_left, "Envoy to know that one picker is gone")
        known_at_s = time.monotonic()
        await wait_until(lambda: len(traffic.begun_after(known_at_s)) >= 2 * RATE_PER_S, "further answers", 4 * PATIENCE_S)
    after = traffic.begun_after(known_at_s)

    assert {answer.status for answer in before} == {200}
    assert {answer.status for answer in after} == {200}
    assert second.log_records("error") == []


class ServiceAddress:
    """The address of a Service without anybody who looks at health: each new connection goes to the picker of the hour."""

    def __init__(self) -> None:
        self.target: EppProcess | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target.grpc.port)
        for source, sink in ((reader, to_writer), (to_reader, writer)):
            self._tasks.add(asyncio.create_task(_pass_on(source, sink)))


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(65_536):
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


async def test_behind_the_address_of_a_service_a_draining_picker_sends_envoy_to_another() -> None:
    """No health check tells Envoy that it drains, and Envoy keeps its connections: it has to be told on them.

    grpcio cannot do that (see `send_elsewhere` of its transport).
    """
    async with start_upstreams(2) as upstreams, ServiceAddress() as service:
        endpoints = [*endpoint_arguments(upstreams), "--transport", "socket"]
        async with EppProcess(*endpoints, "--drain-timeout", "10m") as first, EppProcess(*endpoints) as second:
            service.target = first
            async with start_envoy(service.port, adapt=_without_health_check) as envoy:
                scene = Setting(envoy, first, upstreams)
                async with Traffic(scene) as traffic:
                    await traffic.wait_for(25)
                    first.terminate()
                    await traffic.wait_for(25)  # it is told to leave, comes back here, and is served
                    service.target = second
                    assert await first.wait() == 0
                    await traffic.wait_for(25)
                assert first.log_records("info")[-2]["cut_requests"] == 0
    assert {answer.status for answer in traffic.answers} == {200}
    assert all(not answer.cut for answer in traffic.answers)


def _without_health_check(configuration: Bootstrap) -> None:
    picker_cluster(configuration).health_checks = []
