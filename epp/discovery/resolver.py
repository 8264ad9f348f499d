"""From a hostname to its addresses: the hosts file first, then DNS, as the system does it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from epp.discovery.hosts_file import HostsFile

QUERY_LIFETIME_S = 5.0
"""How long one question may take, over all servers and search domains."""
HOSTS_TTL_S = 5.0
"""How long an answer of the hosts file is good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What is known about the addresses of a name.

    Attributes:
        ipv4: Addresses of the A records; empty when the name has none (or does not exist), None when nobody could tell.
        ipv6: Likewise for AAAA.
        ttl_s: How long this is good, in seconds; 0 when nothing says.
        reason: Why addresses are missing, in a few words that do not change from one try to the next; else None.
    """

    ipv4: tuple[str, ...] | None
    ipv6: tuple[str, ...] | None
    ttl_s: float = 0.0
    reason: str | None = None


class Resolver(Protocol):
    """Asks for the addresses of a name. Never raises for what a network can do."""

    async def resolve(self, name: str) -> Resolution: ...


class DnsResolver:
    """Hosts file and DNS.

    The settings of the system (`resolv.conf`: servers, search domains, ndots) are read for each question, so that a
    change of them needs no restart; questions are seconds apart.
    """

    def __init__(
        self,
        *,
        hosts: HostsFile | None = None,
        make_stub: Callable[[], dns.asyncresolver.Resolver] = dns.asyncresolver.Resolver,
        lifetime_s: float = QUERY_LIFETIME_S,
    ) -> None:
        """Args:
        make_stub: Makes what asks the DNS servers; another one in tests.
        lifetime_s: How long one question may take.
        """
        self._hosts = HostsFile() if hosts is None else hosts
        self._make_stub = make_stub
        self._lifetime_s = lifetime_s

    async def resolve(self, name: str) -> Resolution:
        if found := self._hosts.addresses(name):
            by_version = {v: tuple(ip for ip in found if ip_address(ip).version == v) for v in (4, 6)}
            return Resolution(ipv4=by_version[4], ipv6=by_version[6], ttl_s=HOSTS_TTL_S)
        try:
            stub = self._make_stub()
        except (dns.exception.DNSException, OSError) as error:
            return Resolution(ipv4=None, ipv6=None, reason=f"no DNS server is configured: {error}")
        ipv4, ipv6 = await asyncio.gather(self._ask(stub, name, "A"), self._ask(stub, name, "AAAA"))
        reasons = dict.fromkeys(family.reason for family in (ipv4, ipv6) if family.reason is not None)
        return Resolution(
            ipv4=ipv4.addresses,
            ipv6=ipv6.addresses,
            ttl_s=min((family.ttl_s for family in (ipv4, ipv6) if family.addresses), default=0.0),
            reason=", ".join(reasons) or None,
        )

    async def _ask(self, stub: dns.asyncresolver.Resolver, name: str, record_type: str) -> "_Family":
        try:
            answer = await stub.resolve(name, record_type, search=True, raise_on_no_answer=False, lifetime=self._lifetime_s)
        except dns.resolver.NXDOMAIN:
            return _Family((), reason="the name does not exist")
        except dns.resolver.NoNameservers as error:
            return _Family(None, reason=f"{record_type}: {_server_fault(error)}")
        except dns.resolver.LifetimeTimeout:
            return _Family(None, reason=f"{record_type}: no answer within {self._lifetime_s:g} s")
        except (dns.exception.DNSException, OSError) as error:
            return _Family(None, reason=f"{record_type}: {type(error).__name__}")
        if answer.rrset is None:
            return _Family((), reason=f"no {record_type} records")
        found = {ip_address(str(record)) for record in answer.rrset}
        # Servers rotate the order of their answers; that is no change of the pool.
        return _Family(tuple(str(ip) for ip in sorted(found, key=int)), ttl_s=float(answer.chaining_result.minimum_ttl))


@dataclass(frozen=True, slots=True)
class _Family:
    """The answer for one record type; `addresses` is None when nobody could tell."""

    addresses: tuple[str, ...] | None
    ttl_s: float = 0.0
    reason: str | None = None


def _server_fault(error: dns.resolver.NoNameservers) -> str:
    """Which server said what, of the last one asked."""
    errors: Any = error.kwargs.get("errors") or []
    if not errors:
        return "no DNS server answers"
    server, _, _, fault, _ = errors[-1]
    said = fault if isinstance(fault, str) else type(fault).__name__
    return f"{said} from {str(server).removeprefix('Do53:')}"
