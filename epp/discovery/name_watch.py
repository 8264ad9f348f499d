"""Following one hostname: asking again when its answer has run out, and keeping what was known when nobody answers."""

import asyncio
from collections.abc import Callable
from enum import Enum

from structlog.typing import FilteringBoundLogger

from epp.discovery.discovery import Sleep
from epp.discovery.resolver import Resolution, Resolver

TTL_MIN_S = 1.0
"""A TTL of 0 means "do not keep": asking once a second is near enough and does not spin."""
TTL_MAX_S = 30.0
EMPTY_TTL_S = 2.0
"""A name without addresses is asked again soon: requests are refused until there are some."""


class _Status(Enum):
    UNKNOWN = "unknown"
    RESOLVED = "resolved"
    PARTLY = "partly"
    """One record type is known, the other could not be told."""
    EMPTY = "empty"
    FAILED = "failed"


class NameWatch:
    """The addresses of one name, kept up to date by `run`.

    A failing server (timeout, SERVFAIL) never takes addresses away, per record type. An authoritative "no such name" or
    "no records" does: a headless Service without a ready pod answers so. Only with `keep_when_gone` it counts as failing,
    for names that a file lists: there the file says who is a member, and DNS only where it is.

    Attributes:
        addresses: IPv4, then IPv6, each sorted; None while nothing is known.
        asked: Set once the first question was answered, or failed.
    """

    def __init__(
        self,
        name: str,
        resolver: Resolver,
        *,
        on_change: Callable[[], None],
        log: FilteringBoundLogger,
        sleep: Sleep = asyncio.sleep,
        keep_when_gone: bool = False,
    ) -> None:
        """Args:
        on_change: Called after each change of `addresses`.
        log: Gets one line a change, never one a try.
        """
        self.name = name
        self.addresses: tuple[str, ...] | None = None
        self.asked = asyncio.Event()
        self._resolver = resolver
        self._on_change = on_change
        self._log = log
        self._sleep = sleep
        self._keep_when_gone = keep_when_gone
        self._ipv4: tuple[str, ...] | None = None
        self._ipv6: tuple[str, ...] | None = None
        self._status = _Status.UNKNOWN
        self._failures = 0

    async def run(self) -> None:
        """Ask, wait, ask again; never returns."""
        while True:
            pause_s = self._take(await self._resolver.resolve(self.name))
            self.asked.set()
            await self._sleep(pause_s)

    def _take(self, resolution: Resolution) -> float:
        """Take over an answer; how long to wait before the next question, in seconds."""
        ipv4 = self._ipv4 if resolution.ipv4 is None else resolution.ipv4
        ipv6 = self._ipv6 if resolution.ipv6 is None else resolution.ipv6
        told = resolution.ipv4 is not None or resolution.ipv6 is not None
        found = (ipv4 or ()) + (ipv6 or ())
        if not told or (not found and (ipv4 is None or ipv6 is None or self._keep_when_gone)):
            self._failures += 1
            self._tell(_Status.FAILED, self.addresses, resolution.reason)
            return min(TTL_MAX_S, TTL_MIN_S * 2.0 ** min(self._failures - 1, 10))
        self._failures = 0
        self._ipv4, self._ipv6 = ipv4, ipv6
        if not found:
            self._tell(_Status.EMPTY, found, resolution.reason)
            return EMPTY_TTL_S
        whole = resolution.ipv4 is not None and resolution.ipv6 is not None
        self._tell(_Status.RESOLVED if whole else _Status.PARTLY, found, None if whole else resolution.reason)
        return min(TTL_MAX_S, max(TTL_MIN_S, resolution.ttl_s))

    def _tell(self, status: _Status, addresses: tuple[str, ...] | None, reason: str | None) -> None:
        changed = addresses != self.addresses
        if status is not self._status or changed:
            shown = list(addresses or ())
            if status is _Status.RESOLVED:
                self._log.info("name_resolved", name=self.name, addresses=shown)
            else:
                self._log.warning("name_not_resolved", name=self.name, reason=reason, result=status.value, addresses=shown)
        self._status = status
        self.addresses = addresses
        if changed:
            self._on_change()
