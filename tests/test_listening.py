"""Listening sockets."""

import errno
import socket

import pytest

from epp.errors import BindError
from epp.listening import listen

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=60).close()
    except OSError:
        return False
    return True


@needs_ipv6
def test_no_host_means_both_families_on_one_port() -> None:
    with listen("", 0, flag="--metrics-port") as listener:
        port = listener.getsockname()[1]

        assert reaches("127.0.0.1", port)
        assert reaches("::1", port)


@needs_ipv6
def test_a_host_means_that_address_alone() -> None:
    reached_elsewhere = []
    for _ in range(3):
        with listen("127.0.0.1", 0, flag="--metrics-port") as listener:
            port = listener.getsockname()[1]

            assert reaches("127.0.0.1", port)
            reached_elsewhere.append(reaches("::1", port))
    assert not all(reached_elsewhere), "once another program may have that port there, but not each time"
    with listen("::1", 0, flag="--metrics-port") as listener:
        assert reaches("::1", listener.getsockname()[1])


def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with listen("", 0, flag="--metrics-port") as listener:
        assert listener.family is socket.AF_INET
        assert reaches("127.0.0.1", listener.getsockname()[1])


def test_ipv6_that_is_switched_off_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def without_ipv6(address: tuple[str, int], **options: object) -> socket.socket:
        if options.get("family") is socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr(socket, "create_server", without_ipv6)

    with listen("", 0, flag="--metrics-port") as listener:
        assert listener.family is socket.AF_INET


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with listen("127.0.0.1", 0, flag="--metrics-port") as listener:
        port = listener.getsockname()[1]

        with pytest.raises(
            BindError, match=rf"^--metrics-port: expected a free port on 127\.0\.0\.1, found {port}, which is in use$"
        ):
            listen("127.0.0.1", port, flag="--metrics-port")


@pytest.mark.parametrize("host", ["999.0.0.1", "192.0.2.1", "\u202e", "a" * 5000, "\udc80", "a..b", "a\0b"])
def test_a_host_that_is_no_address_here_is_an_error_of_the_host(host: str) -> None:
    with pytest.raises(BindError, match=r"^--host: expected an address of this machine, found '") as caught:
        listen(host, 0, flag="--metrics-port")
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()
