"""The sockets behind connections: peers that say nothing, drip, or come by the thousand."""

import asyncio
import gc
import resource
import socket
import struct
import sys
from typing import Any

import pytest

from epp.h2.frames import FRAME_HEADER, PREFACE, FrameType, SettingId, frame, settings
from epp.h2.limits import Limits
from epp.h2.server import Patience, Server, Shared, SocketConnection
from epp.h2.stream import Call, Stream
from epp.listening import listen
from tests.fakes.clock import FakeClock

HELLO = PREFACE + settings({SettingId.ENABLE_PUSH: 0})


class Heard:
    """Hears of connections that came to nothing."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def handshake_failed(self, why: str) -> None:
        """No TLS here."""

    def limit_hit(self, limit: str) -> None:
        self.limits.append(limit)


class FakeTransport:
    """A socket that remembers."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return self.aborted or self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


class Echo:
    """A call that says back what it is told."""

    def __init__(self, stream: Stream, _: object) -> None:
        self._stream = stream

    def message(self, message: bytes) -> None:
        self._stream.send(message)

    def half_closed(self) -> None:
        self._stream.finish()

    def drained(self) -> None:
        """Nothing is held."""

    def closed(self, *, cancelled: bool) -> None:
        """Nothing is held."""


def echo(stream: Stream, metadata: Any) -> Call:
    return Echo(stream, metadata)


class Rig:
    """One connection on a fake socket and a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.heard = Heard()
        self.shared = Shared(
            methods={b"/e/Echo": echo},
            limits=Limits(),
            patience=Patience(greeting_s=10.0, keepalive_s=30.0, keepalive_answer_s=20.0, half_frame_s=60.0),
            observer=self.heard,
            now_s=self.clock.monotonic_s,
            max_connections=10,
        )
        self.socket = FakeTransport()
        self.connection = SocketConnection(self.shared, None)
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.connection.tick(self.clock.now_s)


def test_a_peer_that_never_greets_is_dropped_and_counted() -> None:
    rig = Rig()
    rig.connection.data_received(PREFACE[:5])
    rig.wait(10.0)
    assert rig.heard.limits == []
    rig.wait(0.1)
    assert rig.heard.limits == ["greeting"]
    assert rig.socket.aborted
    assert rig.shared.tally.hits["greeting"] == 1


def test_a_silent_peer_is_asked_and_dropped_when_it_does_not_answer() -> None:
    rig = Rig()
    rig.connection.data_received(HELLO)
    rig.wait(30.1)
    assert rig.socket.written.endswith(b"keepaliv")
    rig.wait(20.0)
    assert rig.heard.limits == []
    rig.wait(0.1)
    assert rig.heard.limits == ["keepalive"]
    assert rig.socket.aborted


def test_any_word_of_a_silent_peer_is_an_answer() -> None:
    rig = Rig()
    rig.connection.data_received(HELLO)
    rig.wait(30.1)
    rig.connection.data_received(frame(FrameType.PING, 1, 0, b"keepaliv"))
    rig.wait(20.1)
    assert not rig.socket.aborted


def test_a_peer_that_drips_a_frame_for_too_long_is_dropped() -> None:
    rig = Rig()
    rig.connection.data_received(HELLO)
    head = FRAME_HEADER.pack(1000 << 8 | FrameType.DATA, 0, 1)
    for at in range(len(head)):
        rig.connection.data_received(head[at : at + 1])
        rig.wait(7.0)
    assert rig.heard.limits == []
    for _ in range(2):
        rig.connection.data_received(b"x")
        rig.wait(7.0)
    assert rig.heard.limits == ["half_frame"]
    assert rig.socket.aborted


def test_a_busy_peer_always_has_half_a_frame_and_is_not_dropped() -> None:
    rig = Rig()
    rig.connection.data_received(HELLO)
    ping = frame(FrameType.PING, 1, 0, bytes(8))
    rig.connection.data_received(ping[:5])
    for _ in range(50):
        rig.connection.data_received(ping[5:] + ping[:5])
        rig.wait(7.0)
    assert not rig.socket.aborted


@pytest.mark.timeout(600)
async def test_ten_thousand_connections_that_come_and_go_leave_nothing() -> None:
    rig = Rig()
    shared = Shared(
        methods={b"/e/Echo": echo},
        limits=Limits(),
        patience=Patience(),
        observer=rig.heard,
        now_s=rig.clock.monotonic_s,
        max_connections=1_000,
    )
    server = Server(shared)
    listening = listen("127.0.0.1", 0, flag="--grpc-port")
    port = listening.getsockname()[1]
    await server.serve(listening)

    def come_and_go(batch: int) -> None:
        for number in range(200 * batch, 200 * (batch + 1)):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(HELLO[: number % len(HELLO)])
                if number % 2:  # reset instead of a goodbye
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # the loop and the peers' thread take turns at every step
    peaks = []
    try:
        for batch in range(50):
            await asyncio.to_thread(come_and_go, batch)
            if batch in (9, 49):
                gc.collect()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        async with asyncio.timeout(120):
            quiet = 0
            # asyncio takes connections in tasks of its own, and forgets those it has just taken when it is closed
            while quiet < 10:
                quiet = 0 if shared.sockets or len(asyncio.all_tasks()) > 1 else quiet + 1
                await asyncio.sleep(0.01)
    finally:
        sys.setswitchinterval(switch_interval_s)
        await server.close()
    assert peaks[1] - peaks[0] < 8 * 1024, "KiB of peak memory after four fifths of the connections"
    assert rig.heard.limits == []
