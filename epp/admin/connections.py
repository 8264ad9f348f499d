"""How many connections the metrics port holds."""

import asyncio
from collections.abc import Callable
from typing import cast


class BoundedConnections:
    """A protocol factory in front of another: beyond `most` connections, the one that was silent for longest is cut off.

    Nobody has to sign in at this port. So whoever opens many connections must neither use up the files that the gRPC port
    needs nor lock probes and Prometheus out: a new client always gets in, and one that has just asked keeps its place.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], *, most: int) -> None:
        self._make = make
        self._most = most
        self._open: dict[asyncio.Protocol, asyncio.Transport] = {}
        """Those that were silent for longest come first."""

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self, self._make())

    def opened(self, connection: asyncio.Protocol, transport: asyncio.Transport) -> None:
        if len(self._open) >= self._most:
            self._open.pop(next(iter(self._open))).abort()
        self._open[connection] = transport

    def heard(self, connection: asyncio.Protocol) -> None:
        transport = self._open.pop(connection, None)
        if transport is not None:
            self._open[connection] = transport

    def closed(self, connection: asyncio.Protocol) -> None:
        self._open.pop(connection, None)


class _Connection(asyncio.Protocol):
    """Passes everything on."""

    def __init__(self, all_: BoundedConnections, inner: asyncio.Protocol) -> None:
        self._all = all_
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._all.opened(self, cast("asyncio.Transport", transport))  # uvloop's is none by name
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._all.heard(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.closed(self)
        self._inner.connection_lost(exc)
