"""A metrics page on a loopback port, with a switch for every way a real server can misbehave."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server does with one request.

    Attributes:
        body: The page; ignored when `raw` is given.
        headers: Beside `content-length`, which is sent unless `chunks` or `until_close` say otherwise.
        delay_s: Wait before the first byte.
        raw: Send exactly these bytes instead of a well-formed answer.
        chunks: Send the body in chunked coding, cut into pieces of this many bytes.
        until_close: No length; the body ends with the connection.
        dribble_s: Wait this long after each byte that is sent.
        close: Close the connection afterwards.
        hang: Send nothing, ever.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/plain; version=0.0.4"})
    delay_s: float = 0.0
    raw: bytes | None = None
    chunks: int | None = None
    until_close: bool = False
    dribble_s: float = 0.0
    close: bool = False
    hang: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came in; header names in lower case."""

    path: str
    headers: Mapping[str, str]


class MetricsServer:
    """An HTTP/1.1 server for tests; an async context manager.

    Attributes:
        answer: For every path that is not in `answers`.
        answers: By path.
        requests: All that came, in order.
        connections: How many connections were made.
        port: After entering.
        cut_kept_connections: Close each kept connection on its next request, without an answer (once per connection).
    """

    def __init__(self, body: bytes = b"", *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.answer = Answer(body=body)
        self.answers: dict[str, Answer] = {}
        self.requests: list[Request] = []
        self.connections = 0
        self.cut_kept_connections = False
        self.port = 0
        self._host = host
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def paths(self) -> list[str]:
        """Paths of all requests, in order."""
        return [request.path for request in self.requests]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port as before after a `stop`."""
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections and cut those that are open."""
        assert self._server is not None
        self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = 0
        while True:
            request = _parse(await reader.readuntil(b"\r\n\r\n"))
            if self.cut_kept_connections and served:
                return
            served += 1
            self.requests.append(request)
            answer = self.answers.get(request.path, self.answer)
            if answer.hang:
                await asyncio.Event().wait()
            await asyncio.sleep(answer.delay_s)
            await _send(writer, answer)
            if answer.close or answer.until_close or answer.raw is not None:
                writer.close()
                await writer.wait_closed()
                return


def _parse(head: bytes) -> Request:
    start, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Request(path=start.split(" ")[1], headers={name.lower(): value.strip() for name, _, value in pairs})


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    message = answer.raw if answer.raw is not None else _encode(answer)
    if not answer.dribble_s:
        writer.write(message)
        await writer.drain()
        return
    for byte in message:
        writer.write(bytes([byte]))
        await asyncio.sleep(answer.dribble_s)


def _encode(answer: Answer) -> bytes:
    headers = dict(answer.headers)
    body = answer.body
    if answer.chunks is not None:
        headers["transfer-encoding"] = "chunked"
        cuts = range(0, len(body), answer.chunks)
        pieces = (body[at : at + answer.chunks] for at in cuts)
        body = b"".join(b"%x;name=value\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    elif not answer.until_close:
        headers.setdefault("content-length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} Whatever\r\n{lines}\r\n".encode("latin-1") + body
