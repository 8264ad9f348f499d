"""Connections on sockets: an `asyncio.Protocol` that drives `Connection`, and the ports it listens on."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from epp.h2.connection import Connection
from epp.h2.frames import ErrorCode
from epp.h2.limits import Account, Limits, Tally, Unlimited
from epp.h2.stream import Method
from epp.h2.tls import HandshakeError, TlsPipe

JOIN_BYTES = 65_536
"""Output up to this size is joined into one write; larger output is handed over in pieces, uncopied."""
MAX_UNREAD_BYTES = 4 << 20
"""What is written to a peer that does not read, beyond what was there when it stopped: answers to its control frames and
statuses of its calls, since data waits in the streams. A connection with more is cut."""
CLOSE_S = 1.0
"""How long the last words may take to go out when a server closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server waits for its peers, in seconds.

    Attributes:
        greeting_s: From the connection to the end of the preface.
        keepalive_s: A connection that says nothing for so long is asked (PING) whether it is there …
        keepalive_answer_s: … and closed when it does not answer within this.
        half_frame_s: A frame that has begun must end within this.
    """

    greeting_s: float = 10.0
    keepalive_s: float = 30.0
    keepalive_answer_s: float = 20.0
    half_frame_s: float = 60.0


class ServerObserver(Protocol):
    """Who wants to know of connections that came to nothing."""

    def handshake_failed(self, why: str) -> None: ...

    def limit_hit(self, limit: str) -> None: ...


@dataclass(slots=True)
class Shared:
    """What all connections of a server share."""

    methods: Mapping[bytes, Method]
    limits: Limits
    patience: Patience
    observer: ServerObserver
    now_s: Callable[[], float]
    max_connections: int
    account: Account = field(default_factory=Unlimited)
    tally: Tally = field(default_factory=Tally)
    sockets: set["SocketConnection"] = field(default_factory=set)

    def limit_hit(self, limit: str) -> None:
        """Count a limit, and tell."""
        self.tally.hits[limit] += 1
        self.observer.limit_hit(limit)


class SocketConnection(asyncio.Protocol):
    """One connection on a socket."""

    def __init__(self, shared: Shared, context: ssl.SSLContext | None) -> None:
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._tls = None if context is None else TlsPipe(context)
        self.connection = Connection(
            shared.methods,
            shared.limits,
            now_s=shared.now_s,
            tally=shared.tally,
            wake=self.flush,
            account=shared.account,
        )
        self._began_s = self._heard_s = shared.now_s()
        self._asked_s: float | None = None
        self._half_frame_since_s: float | None = None
        self._reads_seen = 0
        self._unread_bytes = 0

    # ── asyncio.Protocol ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        shared = self._shared
        if len(shared.sockets) >= shared.max_connections:
            shared.limit_hit("connections")
            self._transport.abort()
            return
        shared.sockets.add(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._shared.now_s()
        self._asked_s = None
        if self._tls is not None:
            try:
                data = self._tls.receive(data)
            except HandshakeError as error:
                self._failed(str(error))
                return
        self.connection.receive(data)
        self.flush()

    def eof_received(self) -> bool:
        self.connection.lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.sockets.discard(self)
        if self._tls is not None and not self._tls.established and self._tls.heard:
            self._shared.observer.handshake_failed("the peer went away in the handshake")
            self._tls = None
        self.connection.lost()

    def pause_writing(self) -> None:
        self.connection.write_paused = True
        if self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self.connection.resume_writing()
        self.flush()

    # ── the server's side ──

    def flush(self) -> None:
        """Write what the connection has to say, and close after its last word."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._tls is None or self._tls.established:
            out = self.connection.take_output()
            if self._tls is not None:
                self._tls.send(b"".join(out))
                encrypted = self._tls.take_output()
                if encrypted:
                    transport.write(encrypted)
            elif len(out) == 1:
                transport.write(out[0])
            elif out:
                transport.write(b"".join(out)) if sum(map(len, out)) <= JOIN_BYTES else transport.writelines(out)
        else:
            encrypted = self._tls.take_output()
            if encrypted:
                transport.write(encrypted)
        if self.connection.write_paused and transport.get_write_buffer_size() - self._unread_bytes > MAX_UNREAD_BYTES:
            self._shared.limit_hit("unread_bytes")
            transport.abort()
        elif self.connection.ended:
            transport.close()

    def tick(self, now_s: float) -> None:
        """Look at the clock: deadlines of calls, a peer that does not greet or has gone silent."""
        patience, connection = self._shared.patience, self.connection
        connection.expire(now_s)
        if not connection.greeted:
            if now_s - self._began_s > patience.greeting_s:
                self._shared.limit_hit("greeting")
                self.abort()
        elif self._asked_s is not None:
            if now_s - self._asked_s > patience.keepalive_answer_s:
                self._shared.limit_hit("keepalive")
                self.abort()
        elif now_s - self._heard_s > patience.keepalive_s:
            self._asked_s = now_s
            connection.ping()
        self._watch_half_frame(now_s)
        self.flush()

    def _watch_half_frame(self, now_s: float) -> None:
        """A peer that drips bytes and never completes a frame is dropped."""
        connection = self.connection
        if not connection.has_half_a_frame or connection.reads_with_whole_frames != self._reads_seen:
            self._reads_seen, self._half_frame_since_s = connection.reads_with_whole_frames, None
        elif self._half_frame_since_s is None:
            self._half_frame_since_s = now_s
        elif now_s - self._half_frame_since_s > self._shared.patience.half_frame_s:
            self._shared.limit_hit("half_frame")
            self.abort()

    def close(self) -> None:
        """Say goodbye and close; running calls are cancelled."""
        self.connection.close(ErrorCode.NO_ERROR, "shut down")
        self.flush()

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _failed(self, why: str) -> None:
        assert self._tls is not None, "only TLS connections fail in the handshake"
        transport = self._transport
        alert = self._tls.take_output()
        if transport is not None and not transport.is_closing():
            if alert:
                transport.write(alert)
            transport.close()
        if not self._tls.established:
            self._shared.observer.handshake_failed(why)
        self._tls = None
        self.connection.lost()


class Server:
    """Listens on ports and drives their connections.

    Attributes:
        shared: What all connections share.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._servers: list[asyncio.Server] = []

    async def serve(self, listening: socket.socket, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Take connections from a listening socket (TCP or unix), which this server closes.

        Args:
            tls: Gives the TLS context of the next connection; None for plaintext.
        """
        loop = asyncio.get_running_loop()

        def connection() -> SocketConnection:
            return SocketConnection(self.shared, None if tls is None else tls())

        if listening.family is socket.AF_UNIX:
            self._servers.append(await loop.create_unix_server(connection, sock=listening))
        else:
            self._servers.append(await loop.create_server(connection, sock=listening))

    @property
    def shutdown_heard(self) -> bool:
        """Whether every peer has answered the announcement, so that it opens no more streams here."""
        return all(connection.connection.shutdown_heard for connection in self.shared.sockets)

    def announce_shutdown(self) -> None:
        """First step of a graceful end on every connection."""
        for connection in tuple(self.shared.sockets):
            connection.connection.announce_shutdown()
            connection.flush()

    async def close(self) -> None:
        """Take no more connections and end those that are open."""
        for server in self._servers:
            server.close()
        for connection in tuple(self.shared.sockets):
            connection.close()
        self._servers.clear()
        try:
            async with asyncio.timeout(CLOSE_S):
                while self.shared.sockets:  # noqa: ASYNC110 - each goes when its own transport has ended
                    await asyncio.sleep(0.001)
        except TimeoutError:
            for connection in tuple(self.shared.sockets):
                connection.abort()
