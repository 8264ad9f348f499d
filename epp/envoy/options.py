"""What a user may choose about the Envoy in front of the pool; every choice is checked here, before Envoy sees it."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from epp.errors import ConfigError

BUFFERED_LIMIT_BYTES = 64 << 20
"""Default buffer limit when Envoy has to hold a whole body: as much as the endpoint picker accepts by default."""
STREAMED_LIMIT_BYTES = 1 << 20
"""Default buffer limit when bodies stream: Envoy's own default, enough for full speed and good back-pressure."""

MAX_ENDPOINTS_NAMED = 5

_HOSTNAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


class BodyMode(StrEnum):
    """How Envoy hands a body to the endpoint picker; the names are Envoy's."""

    NONE = "NONE"
    STREAMED = "STREAMED"
    BUFFERED = "BUFFERED"
    BUFFERED_PARTIAL = "BUFFERED_PARTIAL"
    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"

    @property
    def held_whole(self) -> bool:
        """Whether Envoy holds the body until it is complete or the buffer limit is reached."""
        return self in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host (name, IPv4, or IPv6 without brackets) and a port from 0 to 65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """Read `host:port` or `[IPv6]:port`; a ValueError says what was expected."""
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        bracketed = host.startswith("[") and host.endswith("]")
        known = _is_ip(bare, 6) if bracketed else _is_ip(host, 4) or _is_name(host)
        if not colon or not known or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"expected host:port, IPv6 in brackets, port from 0 to 65535, found {text!r}")
        return cls(bare, int(port))

    @property
    def is_ip(self) -> bool:
        return _is_ip(self.host, 4) or _is_ip(self.host, 6)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_epp_address(text: str) -> "HostPort | UnixSocket":
    """Read `host:port`, `[IPv6]:port` or `unix:/path`; a ValueError says what was expected."""
    scheme, colon, path = text.partition(":")
    if scheme == "unix" and colon and path.startswith("/"):
        return UnixSocket(path)
    return HostPort.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyOptions:
    """The choices behind one Envoy configuration.

    Attributes:
        epp: ext_proc addresses of the endpoint picker, at least one; with names they are resolved by DNS. A unix socket
            is that of a picker beside this Envoy, and is spoken to without TLS.
        listen: IP and port for clients; port 0 takes a free one.
        admin: IP and port of Envoy's admin pages; None leaves them out.
        epp_tls: Speak TLS to the endpoint picker.
        epp_ca: File of CA certificates, on Envoy's machine, that must have signed the endpoint picker's certificate;
            None accepts any certificate, as the picker signs its own by default.
        epp_server_name: Name sent as SNI and, with `epp_ca`, required in the certificate.
        request_body_mode: How request bodies reach the endpoint picker.
        response_body_mode: The same for response bodies; None is FULL_DUPLEX_STREAMED, or NONE with `pick_only`.
        pick_only: Skip the response phases, so that ext_proc streams end with the request.
        original_dst: Connect to whatever address the pick names, instead of following the picker's list of endpoints (EDS).
        endpoints_named: How many endpoints a pick names at most, for retries to walk through; only with EDS.
        retry_unanswered: Send a request to another endpoint, too, when one took it and failed before its first byte of an
            answer; only with EDS.
        retry_busy: The same when the endpoint answered 503; only with EDS.
        fail_open: Go on without the endpoint picker when it cannot be reached; None is yes with EDS, where the endpoints last
            heard of are left, and no without.
        fallback: Servers for requests that got no pick; needs `original_dst` and `fail_open`.
        message_timeout_s: How long the endpoint picker may hold a message; has no effect on FULL_DUPLEX_STREAMED.
        connect_timeout_s: How long a connection to an endpoint may take to open.
        buffer_limit_bytes: Most bytes that Envoy holds of one body; None chooses by the modes.
        upstream_http2: Speak HTTP/2 without TLS to the endpoints instead of HTTP/1.1.
        access_log: One line on standard output for each request.
    """

    epp: Sequence[HostPort | UnixSocket] = (HostPort("127.0.0.1", 9002),)
    listen: HostPort = HostPort("0.0.0.0", 8081)  # noqa: S104 - a proxy serves other machines
    admin: HostPort | None = HostPort("127.0.0.1", 19000)
    epp_tls: bool = True
    epp_ca: str | None = None
    epp_server_name: str | None = None
    request_body_mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body_mode: BodyMode | None = None
    pick_only: bool = False
    original_dst: bool = False
    endpoints_named: int = 3
    retry_unanswered: bool = True
    retry_busy: bool = False
    fail_open: bool | None = None
    fallback: Sequence[HostPort] = ()
    message_timeout_s: float = 1000.0
    connect_timeout_s: float = 5.0
    buffer_limit_bytes: int | None = None
    upstream_http2: bool = False
    access_log: bool = False

    def __post_init__(self) -> None:
        if problems := tuple(self._problems()):
            raise ConfigError(*problems)

    @property
    def speaks_tls(self) -> bool:
        """Whether the connection to the endpoint picker has TLS."""
        return self.epp_tls and not all(isinstance(address, UnixSocket) for address in self.epp)

    @property
    def fails_open(self) -> bool:
        """Whether requests go on without the endpoint picker, after defaults."""
        return not self.original_dst if self.fail_open is None else self.fail_open

    @property
    def response_mode(self) -> BodyMode:
        """The response body mode after defaults."""
        if self.response_body_mode is not None:
            return self.response_body_mode
        return BodyMode.NONE if self.pick_only else BodyMode.FULL_DUPLEX_STREAMED

    @property
    def buffer_limit(self) -> int:
        """The buffer limit after defaults, in bytes."""
        if self.buffer_limit_bytes is not None:
            return self.buffer_limit_bytes
        held = self.request_body_mode.held_whole or self.response_mode.held_whole
        return BUFFERED_LIMIT_BYTES if held else STREAMED_LIMIT_BYTES

    def _problems(self) -> list[str]:
        found = []
        if not self.epp:
            found.append("--epp: expected at least one host:port, found none")
        if len({type(address) for address in self.epp}) > 1:
            found.append("--epp: expected unix sockets or TCP addresses, found both")
        found += [f"{flag}: expected a port from 1 to 65535, found {to}" for flag, to in self._targets() if to.port == 0]
        for flag, address in (("--listen", self.listen), ("--admin", self.admin)):
            if address is not None and not address.is_ip:
                found.append(f"{flag}: expected an IP address and port, found {str(address)!r}")
        if self.pick_only and self.response_mode is not BodyMode.NONE:
            found.append(f"--response-body-mode: expected NONE with --pick-only, found {self.response_mode}")
        if self.fallback and not self.original_dst:
            found.append("--fallback: expected --original-dst beside it, found a list of endpoints, which is the fallback")
        elif self.fallback and not self.fails_open:
            found.append("--fallback: expected --fail-open beside it, found a fail-closed filter")
        if not 1 <= self.endpoints_named <= MAX_ENDPOINTS_NAMED:
            found.append(f"--endpoints-named: expected 1 to {MAX_ENDPOINTS_NAMED}, found {self.endpoints_named}")
        if self.retry_busy and self.original_dst:
            found.append("--retry-busy: expected a list of endpoints to retry on, found --original-dst")
        if not self.epp_tls and (self.epp_ca is not None or self.epp_server_name is not None):
            found.append("--epp-ca, --epp-server-name: expected TLS to the endpoint picker, found --epp-tls=false")
        if not 0 < self.message_timeout_s <= 86400:
            found.append(f"--message-timeout: expected more than 0 and at most 24h, found {self.message_timeout_s:g}s")
        if not 0 < self.connect_timeout_s <= 3600:
            found.append(f"--connect-timeout: expected more than 0 and at most 1h, found {self.connect_timeout_s:g}s")
        if not 16384 <= self.buffer_limit <= 0x7FFFFFFF:
            found.append(f"--buffer-limit: expected 16KiB to 2047MiB, found {self.buffer_limit} bytes")
        return found

    def _targets(self) -> list[tuple[str, HostPort]]:
        tcp = [address for address in self.epp if isinstance(address, HostPort)]
        return [("--epp", address) for address in tcp] + [("--fallback", address) for address in self.fallback]


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _is_name(text: str) -> bool:
    """Whether `text` may be a DNS name; what looks like a broken IPv4 address is none."""
    return _HOSTNAME.fullmatch(text) is not None and not text.replace(".", "").isdigit()
