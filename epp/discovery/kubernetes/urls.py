"""URLs that the user gives, of an API server or a proxy; what is told of them shows no user information and no query."""

import ipaddress
import re
from urllib.parse import urlsplit

import httpx2

from epp.config.wording import quote

HOST_MAX_CHARS = 253
"""Of a DNS name (RFC 1035, section 2.3.4)."""

_SCHEMES = ("http", "https")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")


def is_host(name: str) -> bool:
    """Whether it is a DNS name or an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return len(name) <= HOST_MAX_CHARS and _DNS_NAME.fullmatch(name) is not None
    return True


def url_fault(text: str, example: str) -> str | None:
    """What is wrong with it as a URL of an HTTP server, in words that show no secret; None when nothing is.

    Args:
        example: A good one, for people.
    """
    scheme = text.partition("://")[0] if "://" in text else None
    if scheme is not None and scheme.lower() not in _SCHEMES:
        return f"expected http or https, found {quote(scheme) if scheme.isalnum() and len(scheme) < 20 else 'something else'}"
    if not _is_http_url(text):
        return f"expected a URL such as {example}, found {_shown(text)}"
    url = urlsplit(text)
    if "?" in text or "#" in text or "@" in url.path:
        return f"expected a URL such as {example}, found more than scheme, host, port and path"
    return None


def shown_url(text: str) -> str:
    """A good URL, for people: scheme, host, port and path."""
    url = urlsplit(text)
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_loopback(host: str) -> bool:
    """Whether it is this machine, by its name or its address alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_http_url(text: str) -> bool:
    try:
        url, port = httpx2.URL(text), urlsplit(text).port
    except (ValueError, httpx2.InvalidURL):
        return False
    return url.scheme in _SCHEMES and is_host(url.raw_host.decode()) and (port is None or port > 0)


def _shown(text: str) -> str:
    """As little of a URL that is none as cannot be a secret: where it has an `@`, nothing."""
    return "something else" if "@" in text else quote(re.split("[?#]", text)[0])
