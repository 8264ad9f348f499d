"""The HTTP server of the metrics port."""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from epp.admin.answers import error_middleware
from epp.admin.api import RecentPicks, api_routes
from epp.admin.callers import Callers
from epp.admin.connections import BoundedConnections
from epp.admin.dashboard import dashboard_routes
from epp.admin.drain_calls import DrainCalls, Peers
from epp.admin.long_polls import LongPolls
from epp.admin.metrics_page import metrics_routes
from epp.admin.pool_view import PoolView
from epp.admin.probes import probe_routes
from epp.admin.settings_view import EffectiveSetting
from epp.admin.token_file import TokenFile
from epp.clock import Clock
from epp.lifecycle import Lifecycle
from epp.listening import listen
from epp.pool.state import PoolState

SHUTDOWN_S = 1.0
"""How long answers that are being sent may go on when the server closes."""
KEEPALIVE_S = 75.0
"""How long a connection may be open without a complete request."""
MAX_CONNECTIONS = 64
"""Prometheus, probes and a few people; with 100 descriptors more the process has room for whatever knocks here."""
BACKLOG = 16
"""asyncio accepts so many at once before it looks at the first, so it adds to the descriptors in use."""


class AdminServer:
    """Plain HTTP: metrics, probes, JSON API and dashboard, all of them reading only, and drain calls.

    An asynchronous context manager: serves from enter to exit. `port` is known once entered.

    Args:
        host: Address to listen on; empty for all, IPv4 and IPv6.
        port: 0 takes a free one.
        settings: For `/api/v1/config`; secrets may be in it, they are not shown.
        token: Opens the drain calls to those who have it; None lets model servers drain themselves only.
        peers: The other replicas.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        pool: PoolState,
        lifecycle: Lifecycle,
        clock: Clock,
        registry: CollectorRegistry,
        recent_picks: RecentPicks,
        settings: Sequence[EffectiveSetting],
        token: TokenFile | None,
        peers: Peers,
        log: FilteringBoundLogger,
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._port: int | None = None
        app = web.Application(middlewares=[error_middleware(log)])
        app.add_routes(metrics_routes(registry))
        app.add_routes(probe_routes(lifecycle))
        app.add_routes(api_routes(PoolView(pool, lifecycle, clock), recent_picks, settings))
        calls = DrainCalls(pool, Callers(token, peers), LongPolls(pool, lifecycle), peers, clock=clock, log=log)
        app.add_routes(calls.routes())
        app.add_routes(dashboard_routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_silent_logger(),
            handle_signals=False,
            handler_cancellation=True,  # whoever hangs up waits no longer
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=KEEPALIVE_S,
        )
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._port is not None, "the port is chosen when the server is entered"
        return self._port

    async def __aenter__(self) -> Self:
        """Listen and serve.

        Raises:
            BindError: The address and port cannot be listened on.
        """
        listening = listen(self._host, self._wanted_port, flag="--metrics-port")
        try:
            self._port = listening.getsockname()[1]
            await self._runner.setup()
            assert self._runner.server is not None
            connections = BoundedConnections(self._runner.server, most=MAX_CONNECTIONS)
            self._server = await asyncio.get_running_loop().create_server(connections, sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._runner.cleanup()


def _silent_logger() -> logging.Logger:
    """aiohttp logs a request that it cannot read as it came, with the credentials in it; nothing that it says is needed.

    What our handlers raise is logged by `error_middleware`. This logger stands outside the tree: no level or handler of
    the process reaches it.
    """
    logger = logging.Logger("epp.admin.aiohttp")
    logger.addHandler(logging.NullHandler())
    return logger
