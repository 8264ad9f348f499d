"""A load generator, run as a process of its own: keeps connections, counts answers, times them.

    python -m tests.bench.client --port 8081 --body request.json --requests 4000 --connections 16 [--rate 20]

It behaves like `hey`: every connection sends its next request when the last one is answered, at the earliest at its next
beat when a rate is given, and the beats of all connections fall together. Prints one JSON object.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import cast

import uvloop

from epp.scrape.reasons import ScrapeError
from epp.scrape.response import Response

_MAX_ANSWER_BYTES = 1 << 24
_STUCK_S = 60.0


class Worker(asyncio.Protocol):
    """One connection and the requests that go over it, one after the other.

    Args:
        interval_s: Time between beats; 0.0 sends as fast as answers come.
    """

    def __init__(self, request: bytes, requests: int, interval_s: float) -> None:
        self.statuses: Counter[str] = Counter()
        self.latencies_s: list[float] = []
        self._request = request
        self._left = requests
        self._interval_s = interval_s
        self._due_s = 0.0
        self._sent_s = 0.0
        self._answer = Response(_MAX_ANSWER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, host: str, port: int, begin_s: float) -> None:
        """Send all requests; a connection that ends early is opened anew, and its request has failed."""
        loop = asyncio.get_running_loop()
        self._due_s = begin_s + self._interval_s
        while self._left:
            self._done = loop.create_future()
            transport, _ = await loop.create_connection(lambda: self, host, port)
            self._at_next_beat()
            await self._done
            transport.abort()

    # ── asyncio.Protocol ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._answer.feed(data)
        except ScrapeError:
            self._failed("no HTTP")
            return
        if self._answer.complete:
            self.latencies_s.append(time.perf_counter() - self._sent_s)
            self._count(str(self._answer.status))
            if self._left and self._answer.reusable:
                self._at_next_beat()
            elif not self._done.done():
                self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._failed("connection lost")

    def _at_next_beat(self) -> None:
        wait_s = self._due_s - time.perf_counter()
        if self._interval_s and wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._answer = Response(_MAX_ANSWER_BYTES)
        self._sent_s = time.perf_counter()
        if self._interval_s:  # the first beat after now; a beat that was missed is over
            behind = (self._sent_s - self._due_s) // self._interval_s
            self._due_s += (max(0.0, behind) + 1) * self._interval_s
        self._transport.write(self._request)

    def _count(self, outcome: str) -> None:
        self.statuses[outcome] += 1
        self._left -= 1

    def _failed(self, why: str) -> None:
        self._count(why)
        if not self._done.done():
            self._done.set_result(None)


async def load(port: int, body: bytes, requests: int, connections: int, rate: float) -> dict[str, object]:
    """Send `requests` over `connections`, each with at most `rate` a second (0.0: as fast as possible)."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: epp-bench\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    interval_s = 1 / rate if rate else 0.0
    workers = [Worker(head.encode() + body, requests // connections, interval_s) for _ in range(connections)]
    began_s = time.perf_counter()
    async with asyncio.timeout(_STUCK_S + requests / connections * interval_s):
        await asyncio.gather(*(worker.run("127.0.0.1", port, began_s) for worker in workers))
    took_s = time.perf_counter() - began_s
    return {
        "statuses": sum((worker.statuses for worker in workers), Counter()),
        "latencies_s": sorted(round(latency_s, 6) for worker in workers for latency_s in worker.latencies_s),
        "requests_per_s": sum(len(worker.latencies_s) for worker in workers) / took_s,
    }


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--body", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second on each connection")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(load(given.port, given.body.read_bytes(), given.requests, given.connections, given.rate))
    print(json.dumps(result))  # noqa: T201 - read by the program that started this one


if __name__ == "__main__":
    main()
