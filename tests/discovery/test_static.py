import asyncio

import pytest

from epp.discovery.static import StaticDiscovery
from epp.errors import ConfigError
from tests.discovery.fakes import RecordingPool, eventually, running


async def test_the_pool_is_listed_with_the_endpoints_of_the_command_line_in_their_order() -> None:
    pool = RecordingPool()

    async with running(StaticDiscovery(pool, ["10.0.0.2:8000", "[::1]:8001", "10.0.0.1:8000"]).run()):
        await eventually(lambda: pool.listed)

    assert pool.addresses == pool.names == ["10.0.0.2:8000", "[::1]:8001", "10.0.0.1:8000"]
    assert len(pool.ready) == 3


async def test_it_never_returns() -> None:
    pool = RecordingPool()
    async with running(StaticDiscovery(pool, ["10.0.0.1:8000"]).run()) as task:
        await eventually(lambda: pool.listed)
        await asyncio.sleep(0)

        assert not task.done()


def test_nothing_is_told_before_it_runs() -> None:
    pool = RecordingPool()

    StaticDiscovery(pool, ["10.0.0.1:8000"])

    assert not pool.listed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "10.0.0.1",
            '--endpoint: expected ip:port such as 10.0.0.1:8000 or [::1]:8000, found "10.0.0.1" (the port is missing)',
        ),
        ("[::1]", 'found "[::1]" (the port is missing)'),
        ("::1:8000", 'found "::1:8000" (an IPv6 address needs brackets)'),
        ("[10.0.0.1]:8000", 'found "[10.0.0.1]:8000"'),
        ("10.0.0.1:0", 'found "10.0.0.1:0"'),
        ("10.0.0.1:65536", 'found "10.0.0.1:65536"'),
        ("10.0.0.1:08000", 'found "10.0.0.1:08000"'),
        ("10.0.0.256:8000", 'found "10.0.0.256:8000"'),
        ("[fe80::1%eth0]:8000", 'found "[fe80::1%eth0]:8000"'),
        ("http://10.0.0.1:8000", 'found "http://10.0.0.1:8000"'),
        ("10.0.0.1:8000\n", 'found "10.0.0.1:8000\\n"'),
        ("gpu-a:8000", 'found "gpu-a:8000" (for a hostname use --endpoints-dns or --endpoints-file)'),
        ("", 'found ""'),
    ],
)
def test_what_is_no_ip_and_port_is_refused_with_what_was_expected_and_found(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        StaticDiscovery(RecordingPool(), [text])

    assert str(raised.value).endswith(says)


def test_all_faults_are_told_at_once_and_an_endpoint_given_twice_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        StaticDiscovery(RecordingPool(), ["[0:0::1]:8000", "nonsense", "[::1]:8000"])

    assert len(raised.value.problems) == 2
    assert raised.value.problems[1] == '--endpoint: expected each endpoint once, found "[::1]:8000" after "[0:0::1]:8000"'


def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least one ip:port"):
        StaticDiscovery(RecordingPool(), [])
