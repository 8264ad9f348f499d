"""Steady load: requests come at their rate whatever becomes of those before, each on a connection of its own."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

from tests.flows.epp_process import PATIENCE_S, wait_until
from tests.rollout.answer_check import AnswerCheck
from tests.rollout.asks import TOKENS_PER_S, Ask
from tests.rollout.tally import Ending, Tally

PATH = "/v1/completions"
SERVER_HEADER = "x-sim-name"
HUNG_S = 240.0
"""After so long, a request is given up and counted; on purpose longer than anything here takes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that was lost or cut.

    Attributes:
        seen: What its client saw.
        server: Name of the server that had begun to answer, or empty.
        sent_at_s: Monotonic.
        failed_at_s: Monotonic.
    """

    ending: Ending
    seen: str
    server: str
    sent_at_s: float
    failed_at_s: float


class OpenStream:
    """An answer that has begun.

    Attributes:
        server: Name of the server that gives it.
    """

    def __init__(self, server: str, ask: Ask) -> None:
        self.server = server
        self.check = AnswerCheck()
        self._ask = ask

    @property
    def left_s(self) -> float:
        """How much of it is still to come, as long as an idle server takes for that."""
        return (self._ask.tokens - self.check.tokens) / TOKENS_PER_S


class Load:
    """Requests while the context is open; leaving it waits for the end of all that were sent.

    Attributes:
        tally: What became of those that have ended.
        streams: Answers that have begun and not ended.
        failures: Of each that was lost or cut.
    """

    def __init__(
        self, url: str, asks: Iterator[Ask], *, rate_per_s: float, most_at_once: int = 100, server_header: str = SERVER_HEADER
    ) -> None:
        """`url` is where Envoy listens; `server_header` is the header of answers that names the model server."""
        self.tally = Tally()
        self.streams: set[OpenStream] = set()
        self.failures: list[Failure] = []
        self._url = url + PATH
        self._asks = asks
        self._server_header = server_header
        self._pause_s = 1 / rate_per_s
        self._room = asyncio.Semaphore(most_at_once)
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=HUNG_S)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0), timeout=timeout)
        self._driving = asyncio.create_task(self._drive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if kind is not None:
            self._driving.cancel()
        try:
            await asyncio.gather(self._driving, return_exceptions=kind is not None)
        finally:
            await self._session.close()

    async def more(self, count: int) -> None:
        """Wait for so many further whole answers."""
        aim = self.tally.whole + count
        await wait_until(lambda: self.tally.whole >= aim, f"{count} further whole answers", 4 * PATIENCE_S)

    def streams_of(self, server: str, *, left_s: float = 0.0) -> list[OpenStream]:
        """Answers of one server that have begun and have at least `left_s` before them."""
        return [stream for stream in self.streams if stream.server == server and stream.left_s >= left_s]

    async def until_streams(self, server: str, *, left_s: float, count: int = 1) -> None:
        """Wait until so many answers of one server have begun that have at least `left_s` before them."""
        await wait_until(
            lambda: len(self.streams_of(server, left_s=left_s)) >= count,
            f"{count} answers of {server} with {left_s:g} s before them",
            4 * PATIENCE_S,
        )

    async def send(self, ask: Ask) -> Ending:
        """One request to its end, counted."""
        sent_at_s = time.monotonic()
        ending, seen, server = await self._outcome(ask)
        self.tally.add(ending, seen)
        if ending is not Ending.WHOLE:
            self.failures.append(Failure(ending, seen, server, sent_at_s, time.monotonic()))
        return ending

    async def _drive(self) -> None:
        async with asyncio.TaskGroup() as group:
            due_s = time.monotonic()
            while not self._stop.is_set():
                await self._room.acquire()
                group.create_task(self._send_in_room(next(self._asks)))
                due_s = max(due_s + self._pause_s, time.monotonic() - self._pause_s)  # no flood after a pause of the machine
                await asyncio.sleep(due_s - time.monotonic())

    async def _send_in_room(self, ask: Ask) -> None:
        try:
            await self.send(ask)
        finally:
            self._room.release()

    async def _outcome(self, ask: Ask) -> tuple[Ending, str, str]:
        try:
            headers = {"content-type": "application/json"}
            async with self._session.post(self._url, data=ask.body(), headers=headers) as response:
                server = response.headers.get(self._server_header, "")
                if response.status != 200:
                    return Ending.LOST, _refusal(response, server), server
                return *await self._read(response, ask, server), server
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            return Ending.LOST, type(error).__name__, ""

    async def _read(self, response: aiohttp.ClientResponse, ask: Ask, server: str) -> tuple[Ending, str]:
        stream = OpenStream(server, ask)
        self.streams.add(stream)
        try:
            async for piece in response.content.iter_any():
                stream.check.feed(piece)
        except (aiohttp.ClientError, OSError) as error:
            return Ending.CUT, type(error).__name__
        finally:
            self.streams.discard(stream)
        fault = stream.check.fault(ask.tokens)
        if fault is None:
            return Ending.WHOLE, ""
        return (Ending.CUT if stream.check.tokens else Ending.LOST), fault


def _refusal(response: aiohttp.ClientResponse, server: str) -> str:
    reason = response.headers.get("x-epp-reason")
    who = f"the picker ({reason})" if reason else "a model server" if server else "Envoy"
    return f"{response.status} by {who}"
