"""What a real model server shows: its load on its own page, and all that happens when it is told to end under load."""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.engine import Engine
from tests.engines.asks import EngineAsk
from tests.engines.engine_pod import EnginePod
from tests.engines.servers import RealServer
from tests.rollout.answer_check import AnswerCheck
from tests.rollout.load import PATH

CLIENT_S = 120.0
"""How long clients wait whose requests were there before."""
GIVE_UP_S = 5.0
"""How long a client waits for an answer of a server that ends."""
_SMALL = EngineAsk(prompt_bytes=20, tokens=2)


@dataclass(slots=True)
class Aftermath:
    """Everything from SIGTERM to the end of the process; times are seconds after SIGTERM.

    Attributes:
        streams: How the answers ended that had begun to come or waited, with the time of the last of each kind.
        arriving: What requests met that came later.
        health: What the health page answered.
        page: What the metrics page answered.
        loads: Waiting and running requests on it, each as often as it changed.
        ended_s: When the process had ended.
    """

    streams: dict[str, list[float]] = field(default_factory=dict)
    arriving: Counter[str] = field(default_factory=Counter)
    health: Counter[str] = field(default_factory=Counter)
    page: Counter[str] = field(default_factory=Counter)
    loads: list[tuple[float | None, float | None]] = field(default_factory=list)
    ended_s: float = 0.0

    def lines(self) -> list[str]:
        """For people."""
        streams = [f"{len(at)} × {kind} ({min(at):.1f} to {max(at):.1f} s)" for kind, at in sorted(self.streams.items())]
        loads = ", ".join(f"{waiting or 0:g}+{running or 0:g}" for waiting, running in self.loads) or "-"
        return [
            f"  running and waiting: {'; '.join(streams)}",
            f"  arriving:            {_counted(self.arriving)}",
            f"  health:              {_counted(self.health)}",
            f"  metrics:             {_counted(self.page)}; waiting+running: {loads}",
            f"  process:             ended after {self.ended_s:.1f} s",
        ]


class Watcher:
    """Clients of one server, each with connections of its own."""

    def __init__(self, pod: EnginePod, engine: Engine, session: aiohttp.ClientSession) -> None:
        self._pod = pod
        self._engine = engine
        self._session = session

    async def page(self) -> tuple[bytes, str | None]:
        """The metrics page, and its type."""
        async with self._session.get(self._pod.url + self._engine.sources[0].path) as response:
            assert response.status == 200
            return await response.read(), response.headers.get("content-type")

    async def load(self) -> EndpointMetrics:
        """What our reader makes of it."""
        page, _ = await self.page()
        return self._engine.read(self._engine.sources[0], page)

    @asynccontextmanager
    async def streams(self, count: int, tokens: int) -> AsyncIterator[list[asyncio.Task[tuple[str, float]]]]:
        """So many requests at once; a task's result is how the answer ended, and when."""
        asks = [EngineAsk(prompt_bytes=100, tokens=tokens, number=number) for number in range(count)]
        tasks = [asyncio.create_task(self._stream(ask)) for ask in asks]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until_ended(self, streams: list[asyncio.Task[tuple[str, float]]]) -> Aftermath:
        """SIGTERM now, and look on until the process has ended and every stream, too."""
        seen = Aftermath()
        began_s = time.monotonic()
        os.kill(self._pod.pid, signal.SIGTERM)
        while self._pod.running:
            async with asyncio.TaskGroup() as group:
                arriving = group.create_task(self._answer(PATH, _SMALL.body()))
                health = group.create_task(self._answer("/health"))
                page = group.create_task(self._answer(self._engine.sources[0].path))
                group.create_task(asyncio.sleep(0.5))
            seen.arriving[arriving.result()[0]] += 1
            seen.health[health.result()[0]] += 1
            status, text = page.result()
            seen.page[status] += 1
            if status == "200":
                metrics = self._engine.read(self._engine.sources[0], text)
                load = (metrics.waiting_requests, metrics.running_requests)
                if seen.loads[-1:] != [load]:
                    seen.loads.append(load)
        seen.ended_s = time.monotonic() - began_s
        for kind, at_s in await asyncio.gather(*streams):
            seen.streams.setdefault(kind, []).append(at_s - began_s)
        return seen

    async def _answer(self, path: str, body: bytes | None = None) -> tuple[str, bytes]:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                method = "GET" if body is None else "POST"
                async with self._session.request(method, self._pod.url + path, data=body, headers=_JSON) as response:
                    return str(response.status), await response.read()
        except TimeoutError:
            return f"no answer in {GIVE_UP_S:g} s", b""
        except aiohttp.ClientConnectorError:
            return "refused", b""
        except aiohttp.ClientError:
            return "broken", b""

    async def _stream(self, ask: EngineAsk) -> tuple[str, float]:
        check, body = AnswerCheck(), bytearray()
        try:
            async with self._session.post(self._pod.url + PATH, data=ask.body(), headers=_JSON) as response:
                if response.status != 200:
                    return str(response.status), time.monotonic()
                async for piece in response.content.iter_any():
                    check.feed(piece)
                    body += piece
        except (aiohttp.ClientError, TimeoutError):
            return "cut" if body else "never answered", time.monotonic()
        fault = check.fault(ask.tokens)
        if fault is None:
            return "whole", time.monotonic()
        reasons = sorted({reason.decode() for reason in re.findall(rb'"finish_reason":"([a-z]+)"', body)})
        after = "" if check.tokens else " without a token"
        return f"200 with finish_reason {' '.join(reasons) or 'missing'}{after}", time.monotonic()


_JSON = {"content-type": "application/json"}


def _counted(answers: Counter[str]) -> str:
    return ", ".join(f"{count} × {answer}" for answer, count in answers.most_common()) or "-"


@asynccontextmanager
async def start_watched(server: RealServer) -> AsyncIterator[Watcher]:
    """A server that is ready, and its clients."""
    async with (
        EnginePod(server.engine, server) as pod,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0), timeout=aiohttp.ClientTimeout(total=CLIENT_S)
        ) as session,
    ):
        await pod.until_ready()
        yield Watcher(pod, EngineCatalog().named(server.engine), session)
