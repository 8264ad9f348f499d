"""A TCP proxy in front of an API server, which cuts its connections when told to."""

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

_PIECE_BYTES = 1 << 18


class CuttingProxy:
    """`async with CuttingProxy(port_of_the_server) as proxy: proxy.cut()`.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        last_byte_s: When the last bytes of the server came through, on `time.perf_counter`.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self.port = 0
        self.last_byte_s = 0.0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        ending = tuple(self._connections)
        self.cut()
        await asyncio.gather(*ending, return_exceptions=True)

    def cut(self) -> float:
        """Cut every connection; when that was."""
        self._bytes = 0
        for connection in self._connections:
            connection.cancel()
        return time.perf_counter()

    def is_quiet(self, least_bytes: int, quiet_s: float) -> bool:
        """Whether at least so many bytes came since the last cut, and none for so long."""
        return self._bytes >= least_bytes and time.perf_counter() - self.last_byte_s > quiet_s

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, server_writer))
                    group.create_task(self._pump(server_reader, writer, counted=True))
            except* OSError:
                pass
            finally:
                server_writer.transport.abort()
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if counted:
                self._bytes += len(piece)
                self.last_byte_s = time.perf_counter()
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError("one side has ended")
