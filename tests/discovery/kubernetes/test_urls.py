"""URLs of servers, and what is told of them."""

import pytest

from epp.discovery.kubernetes.urls import is_host, is_loopback, shown_url, url_fault


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1:6443",
        "HTTPS://Api.Example",
        "http://[::1]:80/k8s/clusters/c-1",
        "http://me:pass@h",
        "http://ü.example",
    ],
)
def test_urls_of_servers_are_taken(url: str) -> None:
    assert url_fault(url, "x") is None


@pytest.mark.parametrize(
    "url",
    ["", "h", "h:1", "https://", "http://h:0", "http://h:65536", "http://a b", "http://h\0", "http://" + "a" * 64, "http:///p"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    assert (url_fault(url, "http://h:1") or "").startswith("expected a URL such as http://h:1, found ")


def test_a_url_is_shown_without_user_and_query() -> None:
    assert shown_url("http://me:secret@h:1/k8s?token=secret#secret") == "http://h:1/k8s"


def test_hosts_are_dns_names_and_addresses() -> None:
    assert all(map(is_host, ("a", "a.b-c.d.", "10.0.0.1", "fd00::1", "xn--nxa.example", "a_b")))
    assert not any(map(is_host, ("", ".", "a..b", "-a", "a\n", "a b", "é", "a" * 64, "a." * 127)))


def test_loopback_is_known_by_name_and_address() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.8.9.1", "::1", "10.0.0.1", "h")] == [
        True,
        True,
        True,
        False,
        False,
    ]
