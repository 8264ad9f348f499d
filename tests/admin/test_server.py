"""The HTTP server of the metrics port as a whole."""

import asyncio
import gc
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from epp.admin.server import MAX_CONNECTIONS
from epp.telemetry.outcome import RequestOutcome
from tests.admin.running import Admin, serving

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

PATIENCE_S = 90.0
"""How long what must come may take, on a machine however busy."""
READ_ONLY = ["/", "/metrics", "/healthz", "/readyz", "/api/v1/pool", "/api/v1/picks", "/api/v1/config", "/api/v1/drains"]


@pytest.mark.parametrize("path", READ_ONLY)
async def test_every_page_answers_get_and_head_alike(path: str) -> None:
    async with serving() as admin:
        async with admin.client.get(path) as get:
            body = await get.read()
        async with admin.client.head(path) as head:
            assert await head.read() == b""

    assert get.status == head.status == 200
    assert body
    assert get.content_type == head.content_type
    assert get.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", READ_ONLY)
async def test_other_methods_are_refused_with_those_that_work(path: str) -> None:
    async with serving() as admin, admin.client.post(path, data=b"x") as answer:
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"
        assert (await answer.json())["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nothing"),
        ("GET", "/favicon.ico"),
        ("GET", "/api/v1/pool/../../../etc/passwd"),
        ("POST", "/api/v1/endpoints/10.0.0.1:8000/stop"),
        ("GET", "/api/v1/endpoints/a/b/drained"),
    ],
)
async def test_an_unknown_path_is_404_in_json(method: str, path: str) -> None:
    async with serving() as admin, admin.client.request(method, path) as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]

    assert error["code"] == "not_found"
    assert error["message"].startswith("path: expected one that this port serves, found /")


async def test_a_bug_is_500_in_json_and_logged_with_its_stack() -> None:
    class Broken(Admin):
        def recent_picks(self, limit: int) -> Sequence[Mapping[str, Any]]:
            raise KeyError(limit)

    async with Broken().serving() as admin:
        async with admin.client.get("/api/v1/picks") as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "internal"
        async with admin.client.get("/api/v1/pool") as answer:
            assert answer.status == 200

    (line,) = admin.logged.getvalue().splitlines()
    logged = json.loads(line)
    assert (logged["event"], logged["path"]) == ("admin_request_failed", "/api/v1/picks")
    assert "KeyError: 50" in logged["exception"]


async def test_requests_are_not_logged() -> None:
    async with serving() as admin:
        for path in ("/healthz", "/nothing"):
            async with admin.client.get(path):
                pass

    assert admin.logged.getvalue() == ""


MALFORMED = (
    b"GET / HTTP/1.1\r\nhost: x\r\nauthorization: Bearer S3CRET\x01\x00\r\n\r\n",
    b"GET /?api_key=S3CRET\xff\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\ncookie: S3CRET" + b"x" * 9000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nS3CRET name: x\r\n\r\n",
    b"GET http://[S3CRET HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: S3CRET[\r\n\r\n",
    b"GET /S3CRET HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nS3CRET\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: S3CRET\r\n\r\n",
    b"S3CRET\r\n\r\n",
)


@pytest.mark.parametrize("sent", MALFORMED)
async def test_what_a_malformed_request_holds_is_logged_nowhere(
    sent: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may hold credentials, and anybody can send it."""
    caplog.set_level(logging.DEBUG)
    async with serving() as admin:
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()

    assert "S3CRET" not in caplog.text + admin.logged.getvalue() + "".join(capfd.readouterr())


async def test_idle_clients_are_bounded_and_lock_nobody_out() -> None:
    async with serving() as admin:
        idle = [await asyncio.open_connection("127.0.0.1", admin.port) for _ in range(2 * MAX_CONNECTIONS)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                async with admin.client.get("/readyz") as answer:
                    assert answer.status == 200
                cut_off = [await _is_cut_off(reader) for reader, _ in idle[: MAX_CONNECTIONS + 1]]
            assert all(cut_off)
            assert not any(reader.at_eof() or reader.exception() for reader, _ in idle[MAX_CONNECTIONS + 1 :])
        finally:
            for _, writer in idle:
                writer.transport.abort()


async def test_a_client_that_goes_on_asking_keeps_its_connection() -> None:
    async with serving() as admin:
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(4):
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await reader.readuntil(b"ready\n")).startswith(b"HTTP/1.1 200 ")
                idle += [await asyncio.open_connection("127.0.0.1", admin.port) for _ in range(MAX_CONNECTIONS // 2)]
        for _, opened in [(reader, writer), *idle]:
            opened.transport.abort()


async def _is_cut_off(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_clients_that_stop_in_the_middle_hold_up_nobody() -> None:
    async with serving() as admin:
        for i in range(60):
            admin.metrics.request_ended(RequestOutcome(started_at_s=1.0, ended_at_s=2.0, status=200, model=f"m{i}"))
        half_a_request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-"
        never_read = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
        writers = []
        for sent in [half_a_request, never_read] * 5:
            _, writer = await asyncio.open_connection("127.0.0.1", admin.port, limit=1)
            writers.append(writer)
            writer.write(sent)
            await writer.drain()
        try:
            async with asyncio.timeout(PATIENCE_S), admin.client.get("/api/v1/pool") as answer:
                assert answer.status == 200
            async with asyncio.timeout(PATIENCE_S), admin.client.get("/metrics") as answer:
                assert len(await answer.read()) > 1_000_000
        finally:
            for writer in writers:
                writer.transport.abort()


async def test_the_port_is_free_again_after_the_block() -> None:
    assert any([await _refuses_once_it_has_served() for _ in range(3)]), "not once in three times"


async def _refuses_once_it_has_served() -> bool:
    """Whether nobody listens on the port afterwards; another program may have taken it at once."""
    async with serving() as admin:
        port = admin.port
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_the_loop_goes_on_while_a_large_page_is_made() -> None:
    """With a thousand model names the page has half a million lines, which takes seconds to write."""
    async with serving() as admin:
        for i in range(400):
            admin.metrics.request_ended(RequestOutcome(started_at_s=1.0, ended_at_s=2.0, status=200, model=f"m{i}"))
        reading = asyncio.create_task(_read_all(admin))
        # Of this thread's own time: what other programs and the thread that makes the text take is no delay of the loop's making.
        gc.collect()
        gc.disable()  # what earlier tests left is nothing that the page costs
        try:
            longest_s, before_s = 0.0, time.thread_time()
            began_s = time.process_time()
            while not reading.done():
                await asyncio.sleep(0)
                now_s = time.thread_time()
                longest_s, before_s = max(longest_s, now_s - before_s), now_s
            all_s = time.process_time() - began_s
        finally:
            gc.enable()

    assert await reading > 1_000_000
    # The longest piece on the loop is one family of many; made in one piece, the page would be nearly all there is.
    assert longest_s < all_s / 2


async def _read_all(admin: Admin) -> int:
    async with admin.client.get("/metrics") as answer:
        return len(await answer.read())
