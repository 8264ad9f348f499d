"""The client of the demo: sends planned requests through Envoy at their times and says what became of them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import aiohttp

from epp.clock import Clock
from epp.demo.answers import StreamCheck, fault_in_answer
from epp.demo.tally import Ending, Outcome
from epp.demo.traffic import PlannedRequest

PATIENCE_S = 15.0
"""When a request counts as hung; the longest answer takes three seconds on an idle server."""


class Client:
    """Many clients in one: no retries, no limit of connections.

    Attributes:
        open_requests: Requests that are on their way now.
        streams_on: Streams that are running now, by server.
    """

    def __init__(self, url: str, *, model: str, clock: Clock, patience_s: float = PATIENCE_S) -> None:
        """`url` is where Envoy listens."""
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._clock = clock
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None
        self.open_requests = 0
        self.streams_on: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=self._patience_s)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def drive(self, plan: Iterable[PlannedRequest], ended: Callable[[Outcome], None], stop: asyncio.Event) -> None:
        """Send requests at their times until `stop` is set; returns when the last one has ended."""
        began_s = self._clock.monotonic_s()
        async with asyncio.TaskGroup() as group:
            for request in plan:
                if await _set_within(stop, request.at_s - (self._clock.monotonic_s() - began_s)):
                    return
                group.create_task(self._send_and_tell(request, ended))

    async def _send_and_tell(self, request: PlannedRequest, ended: Callable[[Outcome], None]) -> None:
        self.open_requests += 1
        try:
            ended(await self.send(request))
        finally:
            self.open_requests -= 1

    async def send(self, request: PlannedRequest) -> Outcome:
        """One request to its end, whatever that is."""
        assert self._session is not None, "expected to be inside `async with`"
        exchange = _Exchange(request, self._clock, self.streams_on)
        try:
            async with self._session.post(self._url, json=request.body(self._model)) as response:
                await exchange.read(response)
        except TimeoutError:
            exchange.end(Ending.HUNG, f"nothing for {self._patience_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            exchange.lost(error)
        return exchange.outcome()


class _Exchange:
    """One request and what has come of it so far."""

    def __init__(self, request: PlannedRequest, clock: Clock, streams_on: Counter[str]) -> None:
        self._request = request
        self._clock = clock
        self._streams_on = streams_on
        self._began_s = clock.monotonic_s()
        self._status: int | None = None
        self._server: str | None = None
        self._first_byte_s: float | None = None
        self._ending = Ending.ANSWERED
        self._seen = ""

    def end(self, ending: Ending, seen: str) -> None:
        """It ended otherwise than with an answer."""
        self._ending, self._seen = ending, seen

    def lost(self, error: Exception) -> None:
        """The connection broke."""
        if self._status is None:
            self.end(Ending.BROKEN, f"no status ({type(error).__name__})")
        else:
            self.end(Ending.CUT, "stream cut" if self._request.streaming else "answer cut")

    async def read(self, response: aiohttp.ClientResponse) -> None:
        """Read the response to its end."""
        self._status = response.status
        self._server = response.headers.get("x-sim-name")
        if response.status != 200:
            await response.read()
            self.end(Ending.REFUSED, str(response.status))
        elif self._request.streaming:
            await self._read_stream(response)
        elif (fault := fault_in_answer(await response.read())) is not None:
            self.end(Ending.BROKEN, fault)

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        check = StreamCheck()
        if self._server is not None:
            self._streams_on[self._server] += 1
        try:
            async for piece in response.content.iter_any():
                if self._first_byte_s is None:
                    self._first_byte_s = self._clock.monotonic_s() - self._began_s
                check.feed(piece)
        finally:
            if self._server is not None:
                self._streams_on[self._server] -= 1
        if check.fault is not None:
            self.end(Ending.CUT, check.fault)
        elif not check.ended:
            self.end(Ending.BROKEN, "stream ended without its end mark")

    def outcome(self) -> Outcome:
        """The end of it, now."""
        return Outcome(
            streaming=self._request.streaming,
            server=self._server,
            began_at_s=self._began_s,
            ended_at_s=self._clock.monotonic_s(),
            first_byte_s=self._first_byte_s,
            ending=self._ending,
            seen=self._seen,
        )


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event for so long at most; whether it is set."""
    if timeout_s > 0 and not event.is_set():
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
    return event.is_set()
