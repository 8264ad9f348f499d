from pathlib import Path

import pytest

from epp.discovery.hosts_file import HostsFile

HOSTS = """
# comment
127.0.0.1 localhost
::1 localhost ip6-localhost
10.0.0.1\tgpu-a.lan gpu-a   # the big one
fd00::7 GPU-A
10.0.0.1 gpu-a
nonsense gpu-b
fe80::1%eth0 gpu-c
10.0.0.9
"""


@pytest.fixture
def hosts(tmp_path: Path) -> HostsFile:
    path = tmp_path / "hosts"
    path.write_text(HOSTS)
    return HostsFile(path)


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("gpu-a", ("10.0.0.1", "fd00::7")),
        ("Gpu-A.LAN.", ("10.0.0.1",)),
        ("ip6-localhost", ("::1",)),
        ("gpu-b", ()),
        ("gpu-c", ()),
    ],
)
def test_names_and_aliases_have_all_their_addresses_once(hosts: HostsFile, name: str, addresses: tuple[str, ...]) -> None:
    assert hosts.addresses(name) == addresses


def test_localhost_is_one_address_so_that_one_server_is_not_two_endpoints(hosts: HostsFile, tmp_path: Path) -> None:
    only_ipv6 = tmp_path / "only"
    only_ipv6.write_text("::1 localhost\n")

    assert hosts.addresses("localhost") == ("127.0.0.1",)
    assert HostsFile(tmp_path / "missing").addresses("localhost") == ("127.0.0.1",)
    assert HostsFile(only_ipv6).addresses("localhost") == ("::1",)


def test_a_changed_file_is_read_again_and_a_missing_one_knows_nothing(hosts: HostsFile, tmp_path: Path) -> None:
    assert hosts.addresses("gpu-z") == ()

    (tmp_path / "hosts").write_text("10.0.0.26 gpu-z\n")
    assert hosts.addresses("gpu-z") == ("10.0.0.26",)

    (tmp_path / "hosts").unlink()
    assert hosts.addresses("gpu-z") == ()
