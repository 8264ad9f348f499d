"""A simulated server as a process of its own."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


class SimProcess:
    """A running `epp sim` and a client of it.

    Attributes:
        lines: What it printed when it had started.
    """

    def __init__(self, process: asyncio.subprocess.Process, lines: list[str], client: aiohttp.ClientSession) -> None:
        self._process = process
        self.lines = lines
        self.url = lines[0].removeprefix("listening on ")
        self.client = client

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def exit_code(self, *, within_s: float = PATIENCE_S) -> int:
        """Wait for the end."""
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def post(self, prompt: str, max_tokens: int, **members: object) -> tuple[int, str]:
        """Status and text of a completion's answer."""
        body = {"model": "sim-model", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **members}
        async with self.client.post(self.url + "/v1/completions", json=body) as response:
            return response.status, await response.text()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page."""
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def refuses(self, *, within_s: float = PATIENCE_S) -> bool:
        """Whether new connections are refused, now or soon."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:  # it was in the listener's queue when that closed
                continue
            writer.close()
            await asyncio.sleep(0.01)
        return False

    async def wait_for_load(self, path: str, text: str, *, unless: "asyncio.Task[Any] | None" = None) -> None:
        """Wait until the page at `path` has `text`, or until `unless`, whose load it is, has ended already."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in (await self.get(path))[1] and not (unless is not None and unless.done()):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def sim_process(
    *arguments: str, lines: int = 1, environment: Mapping[str, str] | None = None
) -> AsyncIterator[SimProcess]:
    """Start `epp sim` with these arguments; it is killed at the end if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "epp.cli.sim", *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, **(environment or {})}
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            printed = [(await process.stdout.readline()).decode().strip() for _ in range(lines)]
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        # A connection for each request, so that what one connection meets says nothing of another.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            yield SimProcess(process, printed, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
