"""A client that notes when each piece of the answer arrived."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fakes.http1 import Body, Head, Headers, chunk_bytes, head_bytes, last_chunk_bytes, read_head


@dataclass(slots=True)
class Answer:
    """What came back.

    Attributes:
        status: HTTP status.
        pieces: Body pieces with the seconds from the start of the request to their arrival.
        trailers: Trailers of a chunked body.
        cut: The connection ended before the body did.
    """

    status: int
    head: Head
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    trailers: Headers = field(default_factory=list)
    cut: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def first_byte_s(self) -> float:
        """Seconds to the first body byte."""
        return self.pieces[0][0]

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between body pieces."""
        times = [at for at, _ in self.pieces]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(slots=True)
class Connection:
    """One connection to an HTTP/1.1 server; requests one after another."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(
        self,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        pieces: Sequence[bytes] | None = None,
        gap_s: float = 0.0,
        trailers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send a request: `body` with content-length, or `pieces` chunked, `gap_s` apart, then `trailers`."""
        every = [("host", "pool.test"), *headers]
        if pieces is None:
            if body is not None:
                every.append(("content-length", str(len(body))))
            self.writer.write(head_bytes(f"{method} {path} HTTP/1.1", every) + (body or b""))
            await self.writer.drain()
            return
        self.writer.write(head_bytes(f"{method} {path} HTTP/1.1", [*every, ("transfer-encoding", "chunked")]))
        for piece in pieces:
            self.writer.write(chunk_bytes(piece))
            await self.writer.drain()
            if gap_s:
                await asyncio.sleep(gap_s)
        self.writer.write(last_chunk_bytes(trailers))
        await self.writer.drain()

    async def read_answer(
        self, started_s: float, method: str = "POST", on_piece: Callable[[bytes], object] | None = None
    ) -> Answer:
        """Read one answer to its end, or to the end of the connection; `on_piece` is called with each piece of the body."""
        head = await read_head(self.reader)
        if head is None:
            raise ConnectionResetError("no answer")
        answer = Answer(int(head.start.split()[1]), head)
        if method == "HEAD" or answer.status == 204:
            return answer
        body = Body(head, self.reader, is_response=True)
        try:
            async for piece in body.pieces():
                answer.pieces.append((time.monotonic() - started_s, piece))
                if on_piece is not None:
                    on_piece(piece)
        except (asyncio.IncompleteReadError, ConnectionError):
            answer.cut = True
        answer.trailers = body.trailers
        return answer

    async def request(
        self,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        on_piece: Callable[[bytes], object] | None = None,
        **rest: Any,
    ) -> Answer:
        """Send while reading, so that neither side waits for the other; arguments as in `send` and `read_answer`."""
        started_s = time.monotonic()
        sending = asyncio.create_task(self.send(path, method=method, **rest))
        try:
            return await self.read_answer(started_s, method, on_piece)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def reset(self) -> None:
        """End the connection at once, as a client that went away."""
        self.writer.transport.abort()


class _Reader(asyncio.StreamReader):
    """What came before a reset can still be read: a server may answer and close before it has read everything."""

    def set_exception(self, exc: Exception) -> None:
        if isinstance(exc, ConnectionError):
            self.feed_eof()
        else:
            super().set_exception(exc)


@asynccontextmanager
async def connect(host: str, port: int) -> AsyncIterator[Connection]:
    """A connection that is closed at the end, whatever happened."""
    loop = asyncio.get_running_loop()
    reader = _Reader(limit=1 << 20)
    transport, protocol = await loop.create_connection(lambda: asyncio.StreamReaderProtocol(reader), host, port)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


async def fetch(host: str, port: int, path: str = "/v1/chat/completions", *, timeout_s: float = 240.0, **rest: Any) -> Answer:
    """One request on a connection of its own; arguments as in `Connection.request`."""
    async with asyncio.timeout(timeout_s), connect(host, port) as connection:
        return await connection.request(path, **rest)
