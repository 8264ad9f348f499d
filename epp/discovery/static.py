"""Endpoints named on the command line; they never change."""

from collections.abc import Sequence

from epp.config.wording import quote
from epp.discovery.discovery import wait_for_cancellation
from epp.discovery.host_port import IP_PORT_EXAMPLE, parse_hostname, parse_ip, split_host_port
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointAddress, EndpointSpec, endpoint_address
from epp.pool.state import PoolState

_WHERE = "--endpoint"


class StaticDiscovery:
    """The endpoints of `--endpoint`, each named by its address."""

    def __init__(self, pool: PoolState, endpoints: Sequence[str]) -> None:
        """Read the endpoints.

        Raises:
            ConfigError: None is given, one is no `ip:port`, or one is given twice; all faults at once.
        """
        self._pool = pool
        self._specs = tuple(EndpointSpec(address=address, name=address) for address in _read_addresses(endpoints))

    async def run(self) -> None:
        """Tell the pool once, then wait for cancellation."""
        self._pool.sync(self._specs)
        await wait_for_cancellation()


def _read_addresses(endpoints: Sequence[str]) -> Sequence[EndpointAddress]:
    if not endpoints:
        raise ConfigError(f"{_WHERE}: expected at least one {IP_PORT_EXAMPLE}, found none")
    addresses: dict[EndpointAddress, str] = {}
    problems: list[str] = []
    for text in endpoints:
        address = _read_address(text)
        if address is None:
            problems.append(f"{_WHERE}: expected {IP_PORT_EXAMPLE}, found {quote(text)}{_hint(text)}")
        elif address in addresses:
            problems.append(f"{_WHERE}: expected each endpoint once, found {quote(text)} after {quote(addresses[address])}")
        else:
            addresses[address] = text
    if problems:
        raise ConfigError(*problems)
    return tuple(addresses)


def _read_address(text: str) -> EndpointAddress | None:
    split = split_host_port(text)
    ip = None if split is None else parse_ip(split[0])
    return None if split is None or ip is None else endpoint_address(ip, split[1])


def _hint(text: str) -> str:
    split = split_host_port(text)
    if split is not None and parse_hostname(split[0]) is not None:
        return " (for a hostname use --endpoints-dns or --endpoints-file)"
    if parse_ip(text) is not None:
        return " (an IPv6 address needs brackets)" if ":" in text and "[" not in text else " (the port is missing)"
    return ""
