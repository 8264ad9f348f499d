"""A model server as the flow tests need it: says what it received, streams on demand, has a vLLM-style metrics page.

Paths: `/metrics`, `/sse?events=5&gap_ms=100`, `/held` (begins a stream of events and ends it when the gate opens), `/steps`
(the same, but each event waits for `steps`), `/done` (a stream that goes silent after `[DONE]` and never ends), `/bytes?n=1000`
(`&chunked=1`), `/trailers`, `/early` (answers before it reads the body), `/cut` (breaks off in the middle), `/ws` (switches
protocols and echoes bytes), anything else echoes what came in as JSON with `usage`.
"""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tests.fakes.http1 import Body, Head, Headers, chunk_bytes, head_bytes, last_chunk_bytes, read_head

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(slots=True)
class Received:
    """One request as it arrived."""

    method: str
    path: str
    head: Head
    body: bytes
    trailers: Headers


class Upstream:
    """`async with Upstream() as server: server.endpoint`.

    Attributes:
        status: Status of every answer but the metrics page's.
        delay_s: Wait before every answer but the metrics page's.
        gate: Every answer but the metrics page's waits while it is closed; open at first.
        steps: Each event of `/steps` takes one, and so does the end of `/cut` after its first half.
        waiting_requests, running_requests, kv_cache_usage_ratio: What the metrics page says.
        counts_itself: The metrics page adds the requests that are there to `running_requests`.
        page: What the metrics page says instead of that.
        page_delay_s: Wait before the metrics page is sent.
        page_answers: Who asks for the metrics page hangs while it is closed; open at first.
        page_hangs_while_busy: Who asks for the metrics page while requests are there gets no answer.
        received: Requests that came in whole, without those for metrics.
        metrics_hits: Requests for a metrics page: every path that ends in `metrics`.
        active_requests: Requests that have begun and not ended; `most_active_requests` is their maximum.
        cut_requests: Requests whose client went away before the answer was out.
    """

    def __init__(self, name: str = "upstream", host: str = "127.0.0.1") -> None:
        self.name = name
        self.host = host
        self.port = 0
        self.status = 200
        self.delay_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.steps = asyncio.Semaphore(0)
        self.counts_itself = False
        self.page: bytes | None = None
        self.page_delay_s = 0.0
        self.page_answers = asyncio.Event()
        self.page_answers.set()
        self.page_hangs_while_busy = False
        self.waiting_requests = 0
        self.running_requests = 0
        self.kv_cache_usage_ratio = 0.0
        self.received: list[Received] = []
        self.metrics_hits = 0
        self.active_requests = 0
        self.most_active_requests = 0
        self.cut_requests = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """`ip:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a stop, on the same port again."""
        self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break every connection, as a crash would."""
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await read_head(reader):
                await self._answer(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.cut_requests += 1
        finally:
            writer.transport.abort()

    async def _answer(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.start.split(" ")
        url = urlsplit(target)
        if url.path.endswith("metrics"):
            return await self._write_page(reader, writer)
        self.active_requests += 1
        self.most_active_requests = max(self.most_active_requests, self.active_requests)
        try:
            if url.path == "/early":
                await _write(writer, self.status, b'{"early": true}')
            request = await self._read(method, target, head, reader)
            if url.path != "/early":
                await asyncio.sleep(self.delay_s)
                if url.path != "/held":
                    await _until_open(self.gate, reader)
                await self._write_answer(url.path, dict(parse_qsl(url.query)), request, reader, writer)
        finally:
            self.active_requests -= 1

    async def _read(self, method: str, target: str, head: Head, reader: asyncio.StreamReader) -> Received:
        body = Body(head, reader)
        content = b"".join([piece async for piece in body.pieces()])
        request = Received(method, target, head, content, body.trailers)
        self.received.append(request)
        return request

    async def _write_answer(
        self, path: str, query: dict[str, str], request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path == "/sse":
            await self._write_events(int(query.get("events", "5")), float(query.get("gap_ms", "100")) / 1000, reader, writer)
        elif path in ("/held", "/steps", "/done"):
            await self._write_held_events(path, reader, writer)
        elif path == "/ws":
            await _echo_bytes(writer, reader)
        elif path == "/bytes":
            await self._write_bytes(int(query["n"]), "chunked" in query, writer)
        elif path == "/trailers":
            writer.write(_chunked_head(self.status, "text/plain", trailer="x-checksum"))
            writer.write(chunk_bytes(b"with trailers") + last_chunk_bytes([("x-checksum", "abc123")]))
            await writer.drain()
        elif path == "/cut":
            writer.write(_chunked_head(self.status, "text/plain") + chunk_bytes(self.name.encode()))
            await writer.drain()
            await self.steps.acquire()
            writer.transport.abort()
        elif request.method == "HEAD":
            writer.write(head_bytes(f"HTTP/1.1 {self.status} X", [("content-length", "2")]))
        else:
            await _write(writer, self.status, msgspec.json.encode(self._echo(request)))

    async def _write_events(
        self, events: int, gap_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Server-sent events `gap_s` apart, usage in the last but one, then `[DONE]`."""
        writer.write(_chunked_head(self.status, "text/event-stream"))
        for number in range(events):
            if reader.at_eof() or writer.is_closing():
                raise ConnectionResetError("client went away")
            event: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": f"token {number}"}}]}
            if number == events - 1:
                event["usage"] = USAGE
            writer.write(chunk_bytes(b"data: " + msgspec.json.encode(event) + b"\n\n"))
            await writer.drain()
            await asyncio.sleep(gap_s)
        writer.write(chunk_bytes(b"data: [DONE]\n\n") + last_chunk_bytes())
        await writer.drain()

    async def _write_held_events(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Five events, usage in the last, then `[DONE]`; what they wait for is in the path."""
        writer.write(_chunked_head(self.status, "text/event-stream"))
        for number in range(5):
            if path == "/steps":
                await self.steps.acquire()
            elif path == "/held" and number == 1:
                await writer.drain()
                await _until_open(self.gate, reader)
            event: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": f"token {number}"}}]}
            if number == 4:
                event["usage"] = USAGE
            writer.write(chunk_bytes(b"data: " + msgspec.json.encode(event) + b"\n\n"))
        writer.write(chunk_bytes(b"data: [DONE]\n\n"))
        await writer.drain()
        if path == "/done":
            await _until_open(asyncio.Event(), reader)
        writer.write(last_chunk_bytes())
        await writer.drain()

    async def _write_bytes(self, size: int, chunked: bool, writer: asyncio.StreamWriter) -> None:
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        if not chunked:
            await _write(writer, self.status, body, "application/octet-stream")
            return
        writer.write(_chunked_head(self.status, "application/octet-stream"))
        for start in range(0, size, 50_000):
            writer.write(chunk_bytes(body[start : start + 50_000]))
            await writer.drain()
        writer.write(last_chunk_bytes())
        await writer.drain()

    async def _write_page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.metrics_hits += 1
        if self.page_hangs_while_busy and self.active_requests:
            await _until_open(asyncio.Event(), reader)
        await _until_open(self.page_answers, reader)
        await asyncio.sleep(self.page_delay_s)
        page = self._page().encode() if self.page is None else self.page
        await _write(writer, 200, page, "text/plain; version=0.0.4")

    def _echo(self, request: Received) -> dict[str, Any]:
        return {
            "server": self.name,
            "method": request.method,
            "path": request.path,
            "headers": request.head.headers,
            "body_bytes": len(request.body),
            "body_sha256": hashlib.sha256(request.body).hexdigest(),
            "trailers": request.trailers,
            "usage": USAGE,
        }

    def _page(self) -> str:
        labels = '{engine="0",model_name="m"}'
        running = self.running_requests + (self.active_requests if self.counts_itself else 0)
        return (
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{labels} {self.waiting_requests}\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {running}\n"
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            f"vllm:kv_cache_usage_perc{labels} {self.kv_cache_usage_ratio}\n"
            "# TYPE vllm:cache_config_info gauge\n"
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0\n'
        )


def _chunked_head(status: int, content_type: str, trailer: str | None = None) -> bytes:
    headers = [("content-type", content_type), ("transfer-encoding", "chunked")]
    return head_bytes(f"HTTP/1.1 {status} X", headers + ([("trailer", trailer)] if trailer else []))


async def _until_open(gate: asyncio.Event, reader: asyncio.StreamReader) -> None:
    """Wait for the gate; a ConnectionResetError when the client goes away first."""
    if gate.is_set():
        return
    waiting = asyncio.create_task(gate.wait())
    leaving = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise ConnectionResetError("client went away")
    finally:
        waiting.cancel()
        leaving.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


async def _echo_bytes(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
    writer.write(head_bytes("HTTP/1.1 101 Switching Protocols", [("connection", "upgrade"), ("upgrade", "websocket")]))
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()


async def _write(writer: asyncio.StreamWriter, status: int, body: bytes, content_type: str = "application/json") -> None:
    head = head_bytes(f"HTTP/1.1 {status} X", [("content-type", content_type), ("content-length", str(len(body)))])
    with suppress(ConnectionResetError):
        writer.write(head + body)
        await writer.drain()
