"""A real Chromium without a window, driven over its DevTools protocol."""

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.tools import require_tool

START_S = 90.0
WAIT_S = 90.0
"""Both for machines however busy: what is waited for comes."""


class Tab:
    """One page.

    Attributes:
        requested: URLs that the page asked for.
        complaints: Dialogs, script errors and violations of the content security policy.
    """

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requested: list[str] = []
        self.complaints: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a DevTools method and take note of the events that come before its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=WAIT_S)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, event = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requested.append(event["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {event['message']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {event['exceptionDetails']}")
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.complaints.append(f"log: {event['entry']['text']}")

    async def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Go to `url` in a viewport of that size, in CSS pixels."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(WAIT_S):
            while not await self.evaluate(expression):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def browser_tab() -> AsyncIterator[Tab]:
    """A new page of a new browser, both of which end with the block."""
    chromium = require_tool("chromium")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _debugging_port(Path(profile), process)
            async with ClientSession(f"http://127.0.0.1:{port}") as session:
                async with session.get("/json/list") as answer:
                    pages = [target for target in await answer.json() if target["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    tab = Tab(socket)
                    yield tab
                    await socket.send_json({"id": 0, "method": "Browser.close"})
        finally:
            await _end(process)


async def _debugging_port(profile: Path, process: asyncio.subprocess.Process) -> int:
    chosen = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_S):
        while not (chosen.exists() and chosen.read_text()):
            assert process.returncode is None, f"chromium ended with {process.returncode}"
            await asyncio.sleep(0.05)
    return int(chosen.read_text().split()[0])


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(20):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
