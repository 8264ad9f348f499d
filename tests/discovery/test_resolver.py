from collections.abc import AsyncIterator
from pathlib import Path

import dns.asyncresolver
import dns.rcode
import dns.resolver
import pytest

from epp.discovery.hosts_file import HostsFile
from epp.discovery.resolver import DnsResolver, Resolution
from tests.discovery.fakes import FakeDnsServer, dns_server


@pytest.fixture
async def server() -> AsyncIterator[FakeDnsServer]:
    async with dns_server() as server:
        yield server


def resolver(
    server: FakeDnsServer,
    *,
    hosts: Path = Path("/missing"),
    search: tuple[str, ...] = (),
    ndots: int = 1,
    lifetime_s: float = 60.0,
) -> DnsResolver:
    return DnsResolver(hosts=HostsFile(hosts), make_stub=lambda: server.stub(search=search, ndots=ndots), lifetime_s=lifetime_s)


async def test_all_a_and_aaaa_records_are_found_sorted_with_the_lowest_ttl(server: FakeDnsServer) -> None:
    server.records = {("gpus.lan", "A"): ["10.0.0.10", "10.0.0.9", "10.0.0.10"], ("gpus.lan", "AAAA"): ["fd00::2", "fd00::1"]}
    server.ttl_s.update(A=12, AAAA=9)

    assert await resolver(server).resolve("gpus.lan") == Resolution(
        ipv4=("10.0.0.9", "10.0.0.10"), ipv6=("fd00::1", "fd00::2"), ttl_s=9.0
    )


async def test_a_family_without_records_is_empty_and_does_not_shorten_the_ttl(server: FakeDnsServer) -> None:
    server.records = {("gpus.lan", "A"): ["10.0.0.1"]}

    assert await resolver(server).resolve("gpus.lan") == Resolution(
        ipv4=("10.0.0.1",), ipv6=(), ttl_s=7.0, reason="no AAAA records"
    )


async def test_a_name_that_does_not_exist_has_no_addresses(server: FakeDnsServer) -> None:
    assert await resolver(server).resolve("nobody.lan") == Resolution(ipv4=(), ipv6=(), reason="the name does not exist")


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_a_failing_server_tells_nothing(server: FakeDnsServer, rcode: dns.rcode.Rcode) -> None:
    server.rcodes = {("gpus.lan", "*"): rcode}

    resolution = await resolver(server).resolve("gpus.lan")

    said = f"{rcode.name} from 127.0.0.1@{server.port}"
    assert resolution == Resolution(ipv4=None, ipv6=None, reason=f"A: {said}, AAAA: {said}")


async def test_one_family_that_fails_does_not_hide_the_other(server: FakeDnsServer) -> None:
    server.records = {("gpus.lan", "A"): ["10.0.0.1"]}
    server.rcodes = {("gpus.lan", "AAAA"): dns.rcode.SERVFAIL}

    resolution = await resolver(server).resolve("gpus.lan")

    assert (resolution.ipv4, resolution.ipv6, resolution.ttl_s) == (("10.0.0.1",), None, 7.0)
    assert resolution.reason == f"AAAA: SERVFAIL from 127.0.0.1@{server.port}"


async def test_a_silent_server_tells_nothing_after_the_set_time(server: FakeDnsServer) -> None:
    server.silent = {"gpus.lan"}

    resolution = await resolver(server, lifetime_s=0.2).resolve("gpus.lan")

    assert resolution == Resolution(ipv4=None, ipv6=None, reason="A: no answer within 0.2 s, AAAA: no answer within 0.2 s")


async def test_search_domains_are_tried_for_short_names_and_not_for_names_with_a_dot_at_the_end(server: FakeDnsServer) -> None:
    server.records = {("my-svc.my-ns.svc.cluster.local", "A"): ["10.0.0.1"]}
    asks = resolver(server, search=("my-ns.svc.cluster.local", "svc.cluster.local"), ndots=5)

    assert (await asks.resolve("my-svc.my-ns")).ipv4 == ("10.0.0.1",)
    assert (await asks.resolve("my-svc.my-ns.")).ipv4 == ()
    assert ("my-svc.my-ns", "A") in server.questions


async def test_the_hosts_file_comes_before_dns(server: FakeDnsServer, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("10.9.9.9 gpus.lan\nfd00::9 gpus.lan\n")
    server.records = {("gpus.lan", "A"): ["10.0.0.1"]}

    resolution = await resolver(server, hosts=tmp_path / "hosts").resolve("gpus.lan")

    assert (resolution.ipv4, resolution.ipv6) == (("10.9.9.9",), ("fd00::9",))
    assert resolution.ttl_s > 0
    assert server.questions == []


async def test_localhost_needs_no_dns_server(tmp_path: Path) -> None:
    def no_servers() -> dns.asyncresolver.Resolver:
        raise OSError("no nameservers")

    asks = DnsResolver(hosts=HostsFile(tmp_path / "missing"), make_stub=no_servers)

    assert (await asks.resolve("localhost")).ipv4 == ("127.0.0.1",)
    other = await asks.resolve("gpus.lan")
    assert other == Resolution(ipv4=None, ipv6=None, reason="no DNS server is configured: no nameservers")
