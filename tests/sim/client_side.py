"""A client's side of a simulated server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from epp.sim.config import SimConfig
from epp.sim.server import SimServer

CHAT = {"messages": [{"role": "user", "content": "tell me a story"}]}
FAST = {"decode_tokens_per_s": 2000.0, "prefill_tokens_per_s": 100_000.0, "stream_interval_s": 0.005}


def fast(**settings: Any) -> SimConfig:
    """A server that wastes no time."""
    return SimConfig(**{**FAST, **settings})


@asynccontextmanager
async def running(config: SimConfig) -> AsyncIterator[tuple[SimServer, aiohttp.ClientSession]]:
    """A server and a client whose base address it is."""
    async with (
        SimServer(config) as server,
        aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=20)) as client,
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


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Wait for `condition`, at most `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)
