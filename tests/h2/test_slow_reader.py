"""A peer on a real socket that asks and does not read."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest
from hpack import Encoder

from epp.h2.frames import END_HEADERS, END_STREAM, PREFACE, FrameType, frame, settings
from epp.h2.limits import Limits
from epp.h2.server import MAX_UNREAD_BYTES, Patience, Server, Shared
from tests.h2.peer import PATH, REQUEST, body, message
from tests.h2.recorded_call import RecordedCall, finish
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine


class Observer:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def handshake_failed(self, why: str) -> None:
        raise AssertionError(why)

    def limit_hit(self, limit: str) -> None:
        self.limits.append(limit)


class Place:
    """A server, and a client's socket that takes little."""

    def __init__(self) -> None:
        self.observer = Observer()
        self.calls: list[RecordedCall] = []
        self.server = Server(
            Shared(
                methods={PATH: self._call},
                limits=Limits(),
                patience=Patience(),
                observer=self.observer,
                now_s=time.monotonic,
                max_connections=10,
            )
        )
        self.client = socket.socket()
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.client.setblocking(False)
        self.encoder = Encoder()

    async def send(self, sent: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(self.client, sent)

    def request(self, stream_id: int, path: bytes, *, end: bool) -> bytes:
        block = self.encoder.encode([(name, path if name == b":path" else value) for name, value in REQUEST])
        return frame(FrameType.HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)

    def _call(self, stream: object, metadata: object) -> RecordedCall:
        answer = bytes(1 << 20)
        call = RecordedCall(stream, metadata, lambda stream, _: stream.send(answer), finish)  # type: ignore[arg-type]
        self.calls.append(call)
        return call


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    await place.server.serve(listening)
    await asyncio.get_running_loop().sock_connect(place.client, listening.getsockname())
    await place.send(PREFACE + settings({}))
    yield place
    place.client.close()
    await place.server.close()
    async with asyncio.timeout(PATIENCE_S):
        while place.server.shared.sockets:
            await asyncio.sleep(0)


async def test_a_peer_that_asks_without_end_and_reads_nothing_is_cut(place: Place) -> None:
    """Each refusal is a few bytes that no window holds back."""
    with contextlib.suppress(ConnectionError):  # it may be cut while it still asks
        for batch in range(400):
            if place.observer.limits:
                break
            asked = (place.request(1 + 2 * (1_000 * batch + n), b"/unknown", end=True) for n in range(1_000))
            await place.send(b"".join(asked))
            await asyncio.sleep(0)  # the server's turn

    assert place.observer.limits == ["unread_bytes"]


async def test_a_peer_that_reads_late_gets_everything(place: Place) -> None:
    """What waits for a slow reader waits in the streams, so it is not cut however much there is."""
    windows = frame(FrameType.WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big"))
    asked = [
        place.request(stream_id, PATH, end=False)
        + frame(FrameType.WINDOW_UPDATE, 0, stream_id, (2**30).to_bytes(4, "big"))
        + body(stream_id, message(b"a"), end=True)
        for stream_id in range(1, 41, 2)
    ]
    await place.send(windows + b"".join(asked))
    async with asyncio.timeout(PATIENCE_S):
        while len(place.calls) < 20:
            await asyncio.sleep(0)
    got = 0
    while got < 20 * ((1 << 20) + 5):
        async with asyncio.timeout(PATIENCE_S):
            chunk = await asyncio.get_running_loop().sock_recv(place.client, 1 << 20)
        assert chunk, "cut"
        got += len(chunk)

    assert place.observer.limits == []
    assert got > MAX_UNREAD_BYTES
