"""Endpoints from one DNS name: each of its addresses is an endpoint."""

import asyncio

import structlog
from structlog.typing import FilteringBoundLogger

from epp.config.wording import quote
from epp.discovery.discovery import Sleep, wait_for_cancellation
from epp.discovery.host_port import parse_hostname, parse_ip, split_host_port
from epp.discovery.name_watch import NameWatch
from epp.discovery.resolver import DnsResolver, Resolver
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointSpec, endpoint_address
from epp.pool.state import PoolState

_WHERE = "--endpoints-dns"


class DnsDiscovery:
    """The endpoints of `--endpoints-dns name:port`, each named by its address.

    The pool is listed once the name was answered, be it with nothing; as long as no server answers at the start it is
    not, so that health stays NOT_SERVING. An IP address instead of a name is one endpoint that never changes.
    """

    def __init__(
        self,
        pool: PoolState,
        target: str,
        *,
        resolver: Resolver | None = None,
        log: FilteringBoundLogger | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Read `target`.

        Raises:
            ConfigError: It is no `name:port`.
        """
        split = split_host_port(target)
        host = None if split is None else parse_ip(split[0]) or parse_hostname(split[0])
        if split is None or host is None:
            raise ConfigError(f"{_WHERE}: expected name:port such as models.example:8000, found {quote(target)}")
        self._pool = pool
        self._port = split[1]
        self._fixed_ip = parse_ip(host)
        self._watch = NameWatch(
            host,
            DnsResolver() if resolver is None else resolver,
            on_change=self._sync,
            log=structlog.get_logger() if log is None else log,
            sleep=sleep,
        )

    async def run(self) -> None:
        """Follow the name; never returns."""
        if self._fixed_ip is not None:
            self._pool.sync([self._spec(self._fixed_ip)])
            await wait_for_cancellation()
        await self._watch.run()

    def _sync(self) -> None:
        self._pool.sync([self._spec(ip) for ip in self._watch.addresses or ()])

    def _spec(self, ip: str) -> EndpointSpec:
        address = endpoint_address(ip, self._port)
        return EndpointSpec(address=address, name=address)
