"""epp.envoy.options: what is refused before Envoy sees it."""

from typing import Any

import pytest

from epp.envoy.options import (
    BUFFERED_LIMIT_BYTES,
    STREAMED_LIMIT_BYTES,
    BodyMode,
    EnvoyOptions,
    HostPort,
    UnixSocket,
    parse_epp_address,
)
from epp.errors import ConfigError

NAME = HostPort("epp.example", 9002)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:65535", "epp-0.epp.svc.cluster.local:9002", "localhost:80"])
def test_an_address_is_read_and_written_alike(text: str) -> None:
    assert str(HostPort.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":80", "host:65536", "host:-1", "host:٣", "host: 80", "1.2.3:80", "300.1.1.1:80", "::1:80",
     "[::1]80", "[1.2.3.4]:80", "[::1:80", "a b:80", "http://x:80", "x\ny:80", "-x:80"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        HostPort.parse(text)


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"epp": ()}, "--epp: expected at least one host:port, found none"),
        ({"epp": [HostPort("10.0.0.1", 0)]}, "--epp: expected a port from 1 to 65535, found 10.0.0.1:0"),
        ({"listen": NAME}, "--listen: expected an IP address and port, found 'epp.example:9002'"),
        ({"admin": NAME}, "--admin: expected an IP address and port, found 'epp.example:9002'"),
        ({"fallback": [NAME], "original_dst": True}, "--fallback: expected --fail-open beside it, found a fail-closed filter"),
        ({"fallback": [NAME]}, "--fallback: expected --original-dst beside it, found a list of endpoints"),
        ({"endpoints_named": 0}, "--endpoints-named: expected 1 to 5, found 0"),
        ({"retry_busy": True, "original_dst": True}, "--retry-busy: expected a list of endpoints to retry on"),
        ({"epp_tls": False, "epp_ca": "/ca"}, "expected TLS to the endpoint picker, found --epp-tls=false"),
        ({"epp_tls": False, "epp_server_name": "x"}, "expected TLS to the endpoint picker, found --epp-tls=false"),
        ({"message_timeout_s": 0.0}, "--message-timeout: expected more than 0 and at most 24h, found 0s"),
        ({"connect_timeout_s": 4000.0}, "--connect-timeout: expected more than 0 and at most 1h, found 4000s"),
        ({"buffer_limit_bytes": 1}, "--buffer-limit: expected 16KiB to 2047MiB, found 1 bytes"),
        ({"buffer_limit_bytes": 1 << 31}, "--buffer-limit: expected 16KiB to 2047MiB, found 2147483648 bytes"),
        (
            {"pick_only": True, "response_body_mode": BodyMode.STREAMED},
            "--response-body-mode: expected NONE with --pick-only, found STREAMED",
        ),
    ],
)
def test_a_wrong_choice_is_refused_with_the_flag_and_what_was_expected(choices: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EnvoyOptions(**choices)

    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EnvoyOptions(listen=NAME, admin=NAME, connect_timeout_s=0)

    assert len(caught.value.problems) == 3


def test_the_response_body_follows_pick_only() -> None:
    assert EnvoyOptions().response_mode is BodyMode.FULL_DUPLEX_STREAMED
    assert EnvoyOptions(pick_only=True).response_mode is BodyMode.NONE


def test_the_buffer_limit_follows_the_modes() -> None:
    assert EnvoyOptions().buffer_limit == STREAMED_LIMIT_BYTES
    assert EnvoyOptions(request_body_mode=BodyMode.BUFFERED).buffer_limit == BUFFERED_LIMIT_BYTES
    assert EnvoyOptions(response_body_mode=BodyMode.BUFFERED_PARTIAL).buffer_limit == BUFFERED_LIMIT_BYTES
    assert EnvoyOptions(request_body_mode=BodyMode.BUFFERED, buffer_limit_bytes=70_000).buffer_limit == 70_000


def test_a_unix_socket_is_spoken_to_without_tls() -> None:
    assert parse_epp_address("unix:/run/epp.sock") == UnixSocket("/run/epp.sock")
    assert not EnvoyOptions(epp=[UnixSocket("/run/epp.sock")]).speaks_tls
    assert EnvoyOptions().speaks_tls


def test_unix_sockets_and_tcp_addresses_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="--epp: expected unix sockets or TCP addresses, found both"):
        EnvoyOptions(epp=[UnixSocket("/run/epp.sock"), HostPort("10.0.0.1", 9002)])


@pytest.mark.parametrize("text", ["unix:", "unix:relative", "unix"])
def test_a_unix_socket_needs_an_absolute_path(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_epp_address(text)
