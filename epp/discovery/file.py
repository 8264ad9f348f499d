"""Endpoints from a file that is watched."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import structlog
from structlog.typing import FilteringBoundLogger

from epp.clock import Clock, SystemClock
from epp.discovery.discovery import Sleep
from epp.discovery.endpoints_file import FileEndpoint, read_endpoints_file
from epp.discovery.name_watch import NameWatch
from epp.discovery.resolver import DnsResolver, Resolver
from epp.discovery.watched_file import FileLook, WatchedFile
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointSpec
from epp.pool.state import PoolState

LOOK_INTERVAL_S = 0.2
SETTLE_S = 0.1
"""A new content counts once a second look, this much later, finds the same: a file that is being written, or is gone
between delete and write, is not taken for a smaller pool."""
SETTLE_LOOKS_MAX = 5
"""A file that changes at every look is taken as it is after this many, so that a change takes effect within a second."""
FIRST_NAMES_WAIT_S = 2.0
"""How long the first listing waits for hostnames, so that they join at the start and not late."""
_PROBLEMS_LOGGED_MAX = 10


class FileDiscovery:
    """The endpoints of `--endpoints-file`.

    A broken or missing new file keeps the last good state. A hostname becomes one endpoint for each of its addresses
    (`name`, or `name@ip` when there are several), and none while it was never resolved.
    """

    def __init__(
        self,
        pool: PoolState,
        path: str | Path,
        *,
        known_engine: Callable[[str], str],
        resolver: Resolver | None = None,
        on_valid: Callable[[bool], None] | None = None,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """Args:
        known_engine: See `read_endpoints_file`.
        on_valid: Called with whether the file as it is now is in use, at the start and at each change of that.
        """
        self._pool = pool
        self._where = str(path)
        self._file = WatchedFile(Path(path), SystemClock() if clock is None else clock)
        self._known_engine = known_engine
        self._resolver: Resolver = DnsResolver() if resolver is None else resolver
        self._on_valid = on_valid or (lambda _: None)
        self._sleep = sleep
        self._log = structlog.get_logger() if log is None else log
        self._loaded: _Loaded | None = None
        self._problem: str | None = None
        self._watches: dict[str, tuple[NameWatch, asyncio.Task[None]]] = {}
        self._listed = False

    def load(self) -> None:
        """Read the file for the first time, before anything is served. Blocks as long as reading takes.

        Raises:
            ConfigError: The file cannot be read, or is wrong.
        """
        look = self._file.look()
        assert look is not None, "the first look always finds something new"
        self._loaded = self._parse(look)
        self._on_valid(True)

    async def run(self) -> None:
        """List the endpoints, then follow file and hostnames; never returns. Calls `load` if nobody did."""
        if self._loaded is None:
            self.load()
        async with asyncio.TaskGroup() as tasks:
            self._follow_names(tasks)
            await self._wait_for_names()
            self._listed = True
            self._sync()
            await self._follow_file(tasks)

    # ── the file ──

    async def _follow_file(self, tasks: asyncio.TaskGroup) -> NoReturn:
        while True:
            await self._sleep(LOOK_INTERVAL_S)
            look = await asyncio.to_thread(self._file.look)
            if look is not None:
                await self._take(await self._settled(look), tasks)

    async def _settled(self, look: FileLook) -> FileLook:
        for _ in range(SETTLE_LOOKS_MAX):
            await self._sleep(SETTLE_S)
            newer = await asyncio.to_thread(self._file.look)
            if newer is None:
                break
            look = newer
        return look

    async def _take(self, look: FileLook, tasks: asyncio.TaskGroup) -> None:
        try:
            loaded = await asyncio.to_thread(self._parse, look)
        except ConfigError as error:
            self._refuse(error)
            return
        if self._problem is not None or loaded.entries != self._entries:
            self._log.info("endpoints_file_loaded", file=self._where, entries=len(loaded.entries))
        if self._problem is not None:
            self._problem = None
            self._on_valid(True)
        self._loaded = loaded
        self._follow_names(tasks)
        self._sync()

    def _refuse(self, error: ConfigError) -> None:
        if self._problem is None:
            self._on_valid(False)
        if str(error) != self._problem:
            self._problem = str(error)
            self._log.error(
                "endpoints_file_refused",
                file=self._where,
                problems=list(error.problems[:_PROBLEMS_LOGGED_MAX]),
                problems_total=len(error.problems),
                kept_entries=len(self._entries),
            )

    def _parse(self, look: FileLook) -> "_Loaded":
        if look.problem is not None:
            raise ConfigError(f"{self._where}: {look.problem}")
        try:
            text = look.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            found = f"byte 0x{look.content[error.start]:02x} at offset {error.start}"
            raise ConfigError(f"{self._where}: expected UTF-8 text, found {found}") from None
        return _Loaded(read_endpoints_file(text, self._where, self._known_engine))

    # ── the hostnames in it ──

    def _follow_names(self, tasks: asyncio.TaskGroup) -> None:
        wanted = {entry.address for entry in self._entries if entry.is_hostname}
        for name in self._watches.keys() - wanted:
            self._watches.pop(name)[1].cancel()
        for name in wanted - self._watches.keys():
            watch = NameWatch(
                name,
                self._resolver,
                on_change=self._sync,
                log=self._log,
                sleep=self._sleep,
                keep_when_gone=True,
            )
            self._watches[name] = watch, tasks.create_task(watch.run(), name=f"resolve {name}")

    async def _wait_for_names(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_NAMES_WAIT_S):
                for watch, _ in self._watches.values():
                    await watch.asked.wait()

    # ── the pool ──

    @property
    def _entries(self) -> tuple[FileEndpoint, ...]:
        return () if self._loaded is None else self._loaded.entries

    def _sync(self) -> None:
        if self._listed and self._loaded is not None:
            loaded = self._loaded
            self._pool.sync(
                [spec for entry in loaded.entries for spec in loaded.ip_specs.get(entry.name) or self._named(entry)]
            )

    def _named(self, entry: FileEndpoint) -> list[EndpointSpec]:
        """The endpoints that the hostname of `entry` stands for now."""
        addresses = self._watches[entry.address][0].addresses or ()
        return [entry.spec(ip, entry.name if len(addresses) == 1 else f"{entry.name}@{ip}") for ip in addresses]


class _Loaded:
    """A good content of the file.

    Attributes:
        entries: What stands in it.
        ip_specs: The one endpoint of each entry that needs no resolving, by its name; made here, in the thread that
            parses, since thousands of them take tens of milliseconds.
    """

    __slots__ = ("entries", "ip_specs")

    def __init__(self, entries: tuple[FileEndpoint, ...]) -> None:
        self.entries = entries
        self.ip_specs = {entry.name: (entry.spec(entry.address, entry.name),) for entry in entries if not entry.is_hostname}
