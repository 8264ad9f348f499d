"""The network side of a simulated server: its listeners, its connections, and the ways they end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from epp.sim.listener import Listener

MAX_BODY_BYTES = 64 << 20
CLOSE_S = 1.0
"""How long the handlers of cut connections may take to end."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Front:
    """One HTTP server on one or two ports. It must be made inside a running event loop."""

    def __init__(self, handler: Handler) -> None:
        self._server = web.Server(handler, handler_cancellation=True, access_log=None, request_factory=_make_request)
        self.api = Listener(self._server)
        self.metrics: Listener | None = None

    def bind(self, host: str, port: int, metrics_port: int | None) -> None:
        """Take the addresses; connections are refused until one of the other calls."""
        self.api.bind(host, port)
        if metrics_port is not None:
            self.metrics = Listener(self._server)
            try:
                self.metrics.bind(host, metrics_port)
            except OSError:
                self.api.close()
                raise

    @property
    def listeners(self) -> list[Listener]:
        """All of them."""
        return [self.api] if self.metrics is None else [self.api, self.metrics]

    @property
    def open_connections(self) -> int:
        """Connections, idle ones among them."""
        return len(self._server.connections)

    def listen_silently(self) -> None:
        """Let the kernel take connections that nobody serves yet."""
        for listener in self.listeners:
            listener.listen()

    async def serve(self) -> None:
        """Serve connections."""
        for listener in self.listeners:
            await listener.serve()

    def close_listeners(self) -> None:
        """Refuse new connections; those that are there stay."""
        for listener in self.listeners:
            listener.close()

    async def reopen_listeners(self) -> None:
        """Take connections again, on the same ports."""
        for listener in self.listeners:
            await listener.reopen()

    def close_kept_connections(self) -> None:
        """Close idle connections now and the others after their answer."""
        self._server.pre_shutdown()

    def cut_connections(self) -> None:
        """Close every connection in the middle of what it does."""
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def end(self) -> None:
        """Close everything at once and wait until no handler is left."""
        self.close_listeners()
        self.cut_connections()
        deadline_s = time.monotonic() + CLOSE_S
        while self.open_connections and time.monotonic() < deadline_s:  # noqa: ASYNC110, aiohttp tells nobody
            await asyncio.sleep(0)
        await self._server.shutdown(CLOSE_S)

    def is_metrics_port(self, request: web.BaseRequest) -> bool:
        """Whether the metrics page may be answered on the connection of `request`."""
        if self.metrics is None or request.transport is None:
            return True
        return bool(request.transport.get_extra_info("sockname")[1] == self.metrics.port)


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)
