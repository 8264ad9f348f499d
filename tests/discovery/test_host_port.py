import pytest

from epp.discovery.host_port import parse_hostname, parse_ip, parse_port, split_host_port


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("8000", 8000), ("65535", 65535)])
def test_a_port_is_plain_decimals(text: str, port: int) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    "text", ["", "0", "65536", "99999", "100000", "08", "+1", "-1", "8_0", "0x1f", "0o17", "80a", " 80", "８０"]
)
def test_other_ways_of_writing_a_number_are_no_port(text: str) -> None:
    assert parse_port(text) is None


@pytest.mark.parametrize(
    ("text", "ip"),
    [("10.0.0.1", "10.0.0.1"), ("FD00:0::7", "fd00::7"), ("[fd00::7]", "fd00::7"),
     ("10.0.0.01", None), ("10.0.1", None), ("[10.0.0.1]", None), ("[::1", None), ("fe80::1%eth0", None), ("gpu-a", None),
     ("", None)],
)  # fmt: skip
def test_addresses_are_brought_to_one_form(text: str, ip: str | None) -> None:
    assert parse_ip(text) == ip


@pytest.mark.parametrize("name", ["localhost", "gpu-a", "a.b.c.", "my_svc.ns", "1a", "10.0.0.1.example", "a" * 63])
def test_hostnames_are_accepted(name: str) -> None:
    assert parse_hostname(name) == name


def test_hostnames_are_compared_in_lower_case() -> None:
    assert parse_hostname("GPU-A.Lan") == "gpu-a.lan"


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "-a", "a-", "a b", "gpü", "10.0.0.256", "10.0.0", "8000", "a" * 64, "a." * 127 + "a", "a/b", "*"]
)
def test_what_can_be_no_hostname_is_refused_and_so_is_a_mistyped_ip_address(name: str) -> None:
    assert parse_hostname(name) is None


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("a:80", ("a", 80)),
        ("[::1]:80", ("[::1]", 80)),
        ("::1:80", None),
        ("a", None),
        ("a:", None),
        ("a:b", None),
        ("a:80:", None),
    ],
)
def test_host_and_port_are_split_at_the_last_colon_outside_brackets(text: str, split: tuple[str, int] | None) -> None:
    assert split_host_port(text) == split
