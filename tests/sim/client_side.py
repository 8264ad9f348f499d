"""A client's side of a simulated server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from epp.clock import Clock
from epp.sim.config import SimConfig
from epp.sim.server import SimServer
from tests.patience import PATIENCE_S

STILL_S = 0.3
"""How long nothing must happen where something would if it were wrong; what is right passes however long it takes."""
CHAT = {"messages": [{"role": "user", "content": "tell me a story"}]}
FAST = {"decode_tokens_per_s": 2000.0, "prefill_tokens_per_s": 100_000.0, "stream_interval_s": 0.005}


def fast(**settings: Any) -> SimConfig:
    """A server that wastes no time."""
    return SimConfig(**{**FAST, **settings})


@asynccontextmanager
async def running(config: SimConfig, *, clock: Clock | None = None) -> AsyncIterator[tuple[SimServer, aiohttp.ClientSession]]:
    """A server and a client whose base address it is; with a clock that stands still no token comes until it is moved."""
    async with (
        SimServer(config, clock=clock) as server,
        aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as client,
    ):
        yield server, client


async def post(client: aiohttp.ClientSession, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and decoded body of one answer."""
    async with client.post(path, json=body, headers=headers) as response:
        return response.status, response.headers, json.loads(await response.read())


async def get(client: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
    """Status and body of one answer."""
    async with client.get(path) as response:
        return response.status, await response.read()


async def events(client: aiohttp.ClientSession, path: str, body: Any) -> list[tuple[str, Any]]:
    """The server-sent events of one answer: name (empty when there is none) and decoded data (or `[DONE]`)."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.read()
        assert response.headers["content-type"] == "text/event-stream"
        return parse_events((await response.read()).decode())


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Events of a whole stream; each ends with an empty line."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


async def is_pending(task: "asyncio.Task[Any]") -> bool:
    """Whether a task does not end by itself for a while."""
    _, pending = await asyncio.wait([task], timeout=STILL_S)
    return bool(pending)


async def leave(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Wait for `condition`, at most `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)
