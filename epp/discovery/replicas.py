"""Where the other replicas of this picker are: named one by one (`--peer`), or by one DNS name (`--peers-dns`)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from structlog.typing import FilteringBoundLogger

from epp.config.wording import quote
from epp.discovery.discovery import Sleep, wait_for_cancellation
from epp.discovery.host_port import parse_hostname, parse_ip, split_host_port
from epp.discovery.name_watch import NameWatch
from epp.discovery.resolver import DnsResolver, Resolver
from epp.errors import ConfigError


class Replicas:
    """Follows the names. This replica itself may be among them: only an answer can tell.

    A replica of `--peer` stays one while its name has no address; of `--peers-dns`, an address that DNS no longer names
    has left.
    """

    def __init__(
        self,
        peers: Sequence[str],
        peers_dns: str | None,
        *,
        log: FilteringBoundLogger,
        make_resolver: Callable[[], Resolver] = DnsResolver,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Args:
        peers: `http://host:port` each.
        peers_dns: `name:port`.

        Raises:
            ConfigError: One of them is not that; the text has all faults.
        """
        self._fixed: list[tuple[str, int]] = []
        self._named: list[tuple[NameWatch, int, bool]] = []
        problems = []
        for text, listed in (*((peer, False) for peer in peers), *([] if peers_dns is None else [(peers_dns, True)])):
            split = split_host_port(text if listed else text.removeprefix("http://").removesuffix("/"))
            host = None if split is None else parse_ip(split[0]) or parse_hostname(split[0])
            if split is None or host is None:
                flag, example = (
                    ("--peers-dns", "name:port such as epp-replicas.models.svc:9090")
                    if listed
                    else ("--peer", "http://host:port such as http://10.0.0.9:9090")
                )
                problems.append(f"{flag}: expected {example}, found {quote(text)}")
            elif parse_ip(host) is not None:
                self._fixed.append((host, split[1]))
            else:
                watch = NameWatch(host, make_resolver(), on_change=_nothing, log=log, sleep=sleep, keep_when_gone=not listed)
                self._named.append((watch, split[1], listed))
        if problems:
            raise ConfigError(*problems)

    def __bool__(self) -> bool:
        """Whether any may be there."""
        return bool(self._fixed or self._named)

    def named(self) -> tuple[str, ...]:
        """Each as `ip:port` (IPv6 in brackets), and as `name:port` where the name has no address."""
        found = [_label(ip, port) for ip, port in self._fixed]
        for watch, port, listed in self._named:
            addresses = watch.addresses or ()
            found += [_label(ip, port) for ip in addresses]
            if not addresses and not listed:
                found.append(f"{watch.name}:{port}")
        return tuple(dict.fromkeys(found))

    def has_address(self, ip: str) -> bool:
        """Whether one of them is at `ip` (in its normal form)."""
        return any(ip == fixed for fixed, _ in self._fixed) or any(ip in (w.addresses or ()) for w, _, _ in self._named)

    async def asked(self) -> None:
        """Wait until each name was asked for once."""
        for watch, _, _ in self._named:
            await watch.asked.wait()

    async def run(self) -> NoReturn:
        """Follow the names; never returns."""
        async with asyncio.TaskGroup() as group:
            for watch, _, _ in self._named:
                group.create_task(watch.run())
            await wait_for_cancellation()
        raise AssertionError("the wait ends by cancellation only")


def _label(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _nothing() -> None:
    """Whoever wants to know asks."""
