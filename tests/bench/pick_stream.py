"""Picks without an Envoy, at a steady rate, each on a stream of its own; when they were asked for, and what was told."""

import asyncio
import gc
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google.protobuf import ListValue, Struct, Value

_METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_HINT = "x-gateway-destination-endpoint-subset"
_AT_ONCE = 64
"""A machine that is too slow for the rate must not pile up requests, each with an older hint."""
_ADDRESS = re.compile(rb"127\.\d+\.\d+\.\d+:\d+")


@dataclass(frozen=True, slots=True)
class Told:
    """One pick; times are of `time.perf_counter`.

    Attributes:
        address: Empty when none was told.
    """

    sent_s: float
    answered_s: float
    address: str

    @property
    def took_ms(self) -> float:
        return (self.answered_s - self.sent_s) * 1000


class PickStream:
    """Attributes:
    told: All picks so far, in the order of their answers.
    last_s: When each address was told last.
    """

    def __init__(self, port: int, rate_per_s: float) -> None:
        self.told: list[Told] = []
        self.last_s: dict[str, float] = {}
        self._request = _request(None)
        self._interval_s = 1 / rate_per_s
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(_METHOD)
        self._running: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Picks so far."""
        return len(self.told)

    def allow(self, addresses: Sequence[str] | None) -> None:
        """From now on ask for one of these; None: of all."""
        self._request = _request(addresses)

    async def run(self) -> None:
        """Ask at the rate, whether answers come or not (up to `_AT_ONCE`); ends by cancellation."""
        due_s = time.perf_counter()
        try:
            while True:
                if len(self._running) < _AT_ONCE:
                    task = asyncio.create_task(self._pick())
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                due_s = max(due_s + self._interval_s, time.perf_counter() - 5 * self._interval_s)
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._channel.close()

    async def _pick(self) -> None:
        call = self._method()
        sent_s = time.perf_counter()
        await call.write(self._request)
        reply = await call.read()
        answered_s = time.perf_counter()
        # The header and the metadata name it, and nothing else looks like an address.
        found = _ADDRESS.search(reply) if isinstance(reply, bytes) else None
        address = "" if found is None else found[0].decode()
        self.told.append(Told(sent_s, answered_s, address))
        self.last_s[address] = answered_s
        await call.done_writing()
        await call.read()


@asynccontextmanager
async def start_picks(port: int, rate_per_s: float) -> AsyncIterator[PickStream]:
    """A stream of picks for the length of the block."""
    stream = PickStream(port, rate_per_s)
    gc.collect()
    gc.freeze()  # a collection of all that this program has imported takes longer than what is measured
    running = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        gc.unfreeze()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _request(addresses: Sequence[str] | None) -> bytes:
    headers = {":method": "GET", ":path": "/v1/models"}
    fields = [core.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(headers=core.HeaderMap(headers=fields), end_of_stream=True)
    )
    if addresses is not None:
        values = ListValue(values=[Value(string_value=address) for address in addresses])
        hint = Struct(fields={_HINT: Value(list_value=values)})
        message.metadata_context = core.Metadata(filter_metadata={"envoy.lb.subset_hint": hint})
    return bytes(message)
