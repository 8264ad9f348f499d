from pathlib import Path

import dns.rcode
import pytest

from epp.discovery.dns import DnsDiscovery
from epp.discovery.hosts_file import HostsFile
from epp.discovery.resolver import DnsResolver, Resolution
from epp.errors import ConfigError
from tests.discovery.fakes import (
    FakeDnsServer,
    FakeResolver,
    FakeSleep,
    RecordingPool,
    capturing_log,
    dns_server,
    eventually,
    running,
)


async def test_each_address_of_the_name_is_an_endpoint_named_by_its_address() -> None:
    pool, sleep = RecordingPool(), FakeSleep()
    resolver = FakeResolver(gpus_lan=[Resolution(ipv4=("10.0.0.1", "10.0.0.2"), ipv6=("fd00::1",), ttl_s=5.0)])

    async with running(DnsDiscovery(pool, "GPUs.lan:8000", resolver=resolver, sleep=sleep, log=capturing_log()[0]).run()):
        await eventually(lambda: pool.listed)

    assert pool.addresses == pool.names == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]
    assert resolver.asked[0] == "gpus.lan"


async def test_the_pool_is_not_listed_until_a_first_answer_came() -> None:
    pool, sleep = RecordingPool(), FakeSleep()
    log, lines = capturing_log()
    failed = Resolution(ipv4=None, ipv6=None, reason="A: SERVFAIL from 10.0.0.53@53")
    resolver = FakeResolver(gpus_lan=[failed, failed, Resolution(ipv4=("10.0.0.1",), ipv6=(), ttl_s=5.0)])

    async with running(DnsDiscovery(pool, "gpus.lan:8000", resolver=resolver, sleep=sleep, log=log).run()):
        await eventually(lambda: sleep.pauses_s)
        await sleep.end_pause()
        assert not pool.listed
        assert [line["reason"] for line in lines] == ["A: SERVFAIL from 10.0.0.53@53"]
        await sleep.end_pause()
        assert pool.addresses == ["10.0.0.1:8000"]


async def test_a_name_without_addresses_is_an_empty_pool_that_is_listed() -> None:
    pool, sleep = RecordingPool(), FakeSleep()
    resolver = FakeResolver(gpus_lan=[Resolution(ipv4=(), ipv6=(), reason="the name does not exist")])

    async with running(DnsDiscovery(pool, "gpus.lan:8000", resolver=resolver, sleep=sleep, log=capturing_log()[0]).run()):
        await eventually(lambda: pool.listed)

    assert pool.addresses == []


@pytest.mark.parametrize(("target", "address"), [("127.0.0.1:8000", "127.0.0.1:8000"), ("[0:0::1]:8000", "[::1]:8000")])
async def test_an_ip_address_needs_no_resolving(target: str, address: str) -> None:
    pool, resolver = RecordingPool(), FakeResolver()

    async with running(DnsDiscovery(pool, target, resolver=resolver, log=capturing_log()[0]).run()) as task:
        await eventually(lambda: pool.listed)
        assert not task.done()

    assert pool.addresses == [address]
    assert resolver.asked == []


@pytest.mark.parametrize(
    "target",
    ["", "gpus.lan", "gpus.lan:", "gpus.lan:0", "gpus.lan:http", "::1:8000", "10.0.0.256:80", "http://gpus.lan:80", ":80"],
)
def test_what_is_no_name_and_port_is_refused(target: str) -> None:
    with pytest.raises(ConfigError) as raised:
        DnsDiscovery(RecordingPool(), target)

    assert str(raised.value) == f'--endpoints-dns: expected name:port such as models.example:8000, found "{target}"'


class WithPatience:
    """Asks a DNS server, and gives it up soon only where the test has made it silent."""

    def __init__(self, server: FakeDnsServer, hosts: HostsFile) -> None:
        self._server = server
        self._patient, self._hasty = (
            DnsResolver(hosts=hosts, make_stub=server.stub, lifetime_s=lifetime_s) for lifetime_s in (60.0, 0.2)
        )

    async def resolve(self, name: str) -> Resolution:
        return await (self._hasty if self._server.silent else self._patient).resolve(name)


async def test_the_pool_follows_a_real_dns_server_through_growth_failure_and_scale_to_zero(tmp_path: Path) -> None:
    pool, sleep = RecordingPool(), FakeSleep()
    async with dns_server() as server:
        server.records = {("gpus.lan", "A"): ["10.0.0.1"]}
        resolver = WithPatience(server, HostsFile(tmp_path / "hosts"))
        async with running(DnsDiscovery(pool, "gpus.lan:8000", resolver=resolver, sleep=sleep, log=capturing_log()[0]).run()):
            await eventually(lambda: pool.addresses == ["10.0.0.1:8000"])

            server.records = {("gpus.lan", "A"): ["10.0.0.2", "10.0.0.1"], ("gpus.lan", "AAAA"): ["fd00::1"]}
            await sleep.end_pause()
            assert pool.addresses == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]

            server.rcodes = {("gpus.lan", "*"): dns.rcode.SERVFAIL}
            await sleep.end_pause()
            server.rcodes, server.silent = {}, {"gpus.lan"}
            await sleep.end_pause()
            assert pool.addresses == ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]

            server.silent, server.records = set(), {}
            await sleep.end_pause()
            assert pool.addresses == []

    assert sleep.pauses_s[:2] == [7.0, 7.0]
