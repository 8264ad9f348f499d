"""A TCP listener that can be bound without listening, listen without being served, and go away and come back."""

import asyncio
import socket

from aiohttp import web

BACKLOG = 1024


class Listener:
    """One bound address in front of an HTTP server."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._asyncio_server: asyncio.Server | None = None
        self._address: tuple[str, int] = ("", 0)

    @property
    def address(self) -> str:
        """`host:port`; IPv6 in brackets."""
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def port(self) -> int:
        """The port, also when 0 was asked for."""
        return self._address[1]

    def bind(self, host: str, port: int) -> None:
        """Take the address; connections are refused until `listen`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
        self._socket = listener
        self._address = listener.getsockname()[:2]

    def listen(self) -> None:
        """Let the kernel take connections; nobody serves them until `serve`."""
        assert self._socket is not None
        self._socket.listen(BACKLOG)

    async def serve(self) -> None:
        """Serve connections."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        self._asyncio_server = await loop.create_server(self._server, sock=self._socket, backlog=BACKLOG)

    def close(self) -> None:
        """Refuse new connections; those that are there stay."""
        if self._asyncio_server is not None:
            self._asyncio_server.close()
            self._asyncio_server = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def reopen(self) -> None:
        """After `close`: listen on the same address again."""
        self.bind(*self._address)
        await self.serve()
