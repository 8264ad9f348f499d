"""How addresses, hostnames and ports are written by people."""

import re
from ipaddress import ip_address

IP_PORT_EXAMPLE = "ip:port such as 10.0.0.1:8000 or [::1]:8000"

_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def parse_port(text: str) -> int | None:
    """The port from 1 to 65535 that `text` writes in plain decimals without leading zeros; None when it is none."""
    return int(text) if _PORT.fullmatch(text) and int(text) <= 65535 else None


def parse_ip(text: str) -> str | None:
    """The normal form of an IPv4 or IPv6 address (IPv6 with or without brackets); None when it is none.

    Addresses with a zone (`fe80::1%eth0`) are none: a zone means nothing on another machine, and Envoy is asked to
    connect there.
    """
    bracketed = text.startswith("[") and text.endswith("]")
    bare = text[1:-1] if bracketed else text
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    if "%" in bare or (bracketed and address.version == 4):
        return None
    return str(address)


def parse_hostname(text: str) -> str | None:
    """The normal form (lower case) of a hostname after RFC 1123, underscores allowed; None when it is none.

    A last label of digits only is refused, so that a mistyped IPv4 address (`10.0.0.256`) is not taken for a name.
    A dot at the end stays: it says that search domains must not be tried.
    """
    name = text.lower()
    labels = name.removesuffix(".").split(".")
    if len(name) > 253 or labels[-1].isdigit() or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        return None
    return name


def split_host_port(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port`, the host as written (an IPv6 address needs its brackets); None when it is not that."""
    host, colon, port_text = text.rpartition(":")
    port = parse_port(port_text)
    if not colon or port is None or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        return None
    return host, port
