"""The watches of a fake API server, and how they go wrong."""

import asyncio
import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from tests.fakes.http1 import chunk_bytes, head_bytes, last_chunk_bytes
from tests.fakes.kube_api_store import Change, KubeJson


class End(Enum):
    """How a watch is to end."""

    PROPER = "proper"
    CUT = "cut"
    """The connection is gone from one moment to the next."""


def line_of(event_type: str, found: Any) -> bytes:
    """An event on the wire."""
    return json.dumps({"type": event_type, "object": found}).encode() + b"\n"


def status_object(code: int, reason: str, message: str) -> KubeJson:
    """What an API server answers instead of an object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


class Watch:
    """One running watch: what it has to send, until it ends.

    Attributes:
        silent: It was left half open: nothing is sent any more, not even its end.
    """

    def __init__(self, collection: str, matches: Callable[[KubeJson], bool], version: int, *, silent: bool) -> None:
        self.collection = collection
        self.silent = silent
        self._matches = matches
        self._version = version
        self._todo: asyncio.Queue[bytes | End] = asyncio.Queue()

    def tell(self, step: Change) -> None:
        """Send a change, if it is one for this watch."""
        if step.collection == self.collection and step.version > self._version:
            event = step.event_for(self._matches)
            if event is not None:
                self.send(line_of(event["type"], event["object"]))

    def send(self, line: bytes | End) -> None:
        """Send bytes as they are, or end."""
        self._todo.put_nowait(line)

    async def serve(self, writer: asyncio.StreamWriter, lasts_s: float, bookmark: Callable[[], bytes]) -> bool:
        """Send all there is to send; whether the connection can be used further.

        Args:
            lasts_s: Time limit of the watch.
            bookmark: What is sent at the time limit.
        """
        writer.write(head_bytes("HTTP/1.1 200 OK", [("content-type", "application/json"), ("transfer-encoding", "chunked")]))
        ends_at_s = asyncio.get_running_loop().time() + lasts_s
        while True:
            await writer.drain()
            if self.silent:
                await asyncio.Event().wait()
            try:
                async with asyncio.timeout_at(ends_at_s):
                    orders = [await self._todo.get()]
                if self.silent:
                    continue
            except TimeoutError:
                writer.write(chunk_bytes(bookmark()) + last_chunk_bytes())
                return True
            while not self._todo.empty():
                orders.append(self._todo.get_nowait())
            end = next((order for order in orders if isinstance(order, End)), None)
            lines = orders[: orders.index(end)] if end is not None else orders
            # One write, but a chunk for each event, as the real one.
            writer.write(b"".join(chunk_bytes(line) for line in lines if isinstance(line, bytes)))
            if end is End.PROPER:
                writer.write(last_chunk_bytes())
                return True
            if end is End.CUT:
                await writer.drain()
                return False
