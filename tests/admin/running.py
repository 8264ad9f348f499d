"""An admin server on a free port over a pool that a test fills."""

import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from epp.admin.peers import Peers
from epp.admin.pool_collector import PoolCollector
from epp.admin.server import AdminServer
from epp.admin.settings_view import EffectiveSetting
from epp.admin.token_file import TokenFile
from epp.lifecycle import Lifecycle, Phase
from epp.pool.state import PoolState
from epp.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of


class FakeDirectory:
    """Replicas that a test names."""

    def __init__(self, replicas: list[str]) -> None:
        self._replicas = replicas

    def named(self) -> Sequence[str]:
        return self._replicas

    def has_address(self, ip: str) -> bool:
        return any(replica.rpartition(":")[0].strip("[]") == ip for replica in self._replicas)

    async def asked(self) -> None:
        """They are known."""


@dataclass(kw_only=True)
class Admin:
    """What the server shows, for tests to change, and a client whose paths are relative to it.

    Attributes:
        picks: What the picker would give as recent picks, newest first.
        token_file: With the admin token, if there is one.
        replicas: Where the replicas of the picker are, as `ip:port`; may be changed at any time.
        peer_timeout_s: How long one of them may take.
        logged: Everything the server logged.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    pool: PoolState = field(init=False)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    metrics: Metrics = field(init=False)
    picks: list[dict[str, Any]] = field(default_factory=list)
    settings: Sequence[EffectiveSetting] = ()
    token_file: Path | None = None
    replicas: list[str] = field(default_factory=list)
    peer_timeout_s: float = 60.0
    peers: Peers = field(init=False)
    host: str = "127.0.0.1"
    logged: io.StringIO = field(default_factory=io.StringIO)
    port: int = 0
    client: ClientSession = field(init=False)

    def __post_init__(self) -> None:
        self.pool = pool_of(0, self.clock)
        self.metrics = Metrics(self.registry)
        self.registry.register(PoolCollector(self.pool, self.lifecycle, self.clock))

    def recent_picks(self, limit: int) -> Sequence[Mapping[str, Any]]:
        return self.picks[:limit]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def watched(self) -> int:
        """How many wait for an endpoint of the pool to become idle."""
        return self.pool.idle_watchers

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Admin"]:
        """Serve until the block ends."""
        log = structlog.wrap_logger(
            structlog.WriteLogger(self.logged),
            processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )
        token = None if self.token_file is None else TokenFile(str(self.token_file), log)
        self.peers = Peers(FakeDirectory(self.replicas), token=token, timeout_s=self.peer_timeout_s, clock=self.clock, log=log)
        server = AdminServer(
            host=self.host,
            port=0,
            pool=self.pool,
            lifecycle=self.lifecycle,
            clock=self.clock,
            registry=self.registry,
            recent_picks=self.recent_picks,
            settings=self.settings,
            token=token,
            peers=self.peers,
            log=log,
        )
        async with self.peers, server:
            self.port = server.port
            async with ClientSession(self.url) as self.client:
                yield self


@asynccontextmanager
async def serving(**attributes: Any) -> AsyncIterator[Admin]:
    """An admin server of a picker that is ready."""
    admin = Admin(**attributes)
    admin.lifecycle.enter(Phase.SERVING)
    async with admin.serving():
        yield admin
