"""As much HTTP/1.1 as the fakes need, trailers included (no library here reads and writes them)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Head:
    """Start line and headers of a message; header names in lower case, in the order received."""

    start: str
    headers: Headers

    def get(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)

    def all(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key == name]


@dataclass(slots=True)
class Body:
    """Reads a body piece by piece; `trailers` are known at the end."""

    head: Head
    reader: asyncio.StreamReader
    is_response: bool = False
    trailers: Headers = field(default_factory=list)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive."""
        if (self.head.get("transfer-encoding") or "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
        elif (length := self.head.get("content-length")) is not None:
            async for piece in _exactly(self.reader, int(length)):
                yield piece
        elif self.is_response:
            while piece := await self.reader.read(65536):
                yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            async for piece in _exactly(self.reader, size):
                yield piece
            await self.reader.readexactly(2)
        self.trailers = await read_headers(self.reader)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next message's head; None at the end of the connection."""
    try:
        start = await reader.readuntil(b"\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    return Head(start.decode("latin-1").strip(), await read_headers(reader))


async def read_headers(reader: asyncio.StreamReader) -> Headers:
    """Header lines up to the empty one."""
    headers: Headers = []
    while line := (await reader.readuntil(b"\r\n")).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers.append((name.strip().lower(), value.strip()))
    return headers


def head_bytes(start: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """A message's head on the wire."""
    return (start + "\r\n" + _lines(headers) + "\r\n").encode("latin-1")


def chunk_bytes(piece: bytes) -> bytes:
    """One chunk on the wire; empty pieces give none, as that would be the end."""
    return b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b""


def last_chunk_bytes(trailers: Sequence[tuple[str, str]] = ()) -> bytes:
    """The end of a chunked body."""
    return ("0\r\n" + _lines(trailers) + "\r\n").encode("latin-1")


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, 65536))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        yield piece


def _lines(headers: Sequence[tuple[str, str]]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers)
