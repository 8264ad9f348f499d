"""Who may drain what.

The port has no sign-in for reading. A call that changes something, or that waits, needs the admin token; without it, a model
server may speak for the endpoints at its own address, and another replica of this picker may pass on what it was told. What
a caller says of itself (`x-forwarded-for`) counts for nothing.
"""

from ipaddress import IPv6Address, ip_address
from typing import Protocol

from aiohttp import web

from epp.admin.token_file import TokenFile
from epp.pool.endpoint import EndpointAddress

FORWARDED = "x-epp-forwarded"
"""A replica passes a call on; the value names the replica."""
UNKNOWN_ENDPOINT = "unknown_endpoint"
"""The code of the 404 that says that the pool has no such endpoint."""
_SAME_SITE = frozenset({"same-origin", "none"})


class NotAllowedError(Exception):
    """The caller may not do this; the text says why."""


class HasAddress(Protocol):
    """Who knows where the other replicas are."""

    def has_address(self, ip: str) -> bool: ...


class Callers:
    """Judges requests."""

    def __init__(self, token: TokenFile | None, peers: HasAddress) -> None:
        self._token = token
        self._peers = peers

    def check_origin(self, request: web.Request) -> None:
        """Refuse what a page of another site makes a browser send.

        Raises:
            NotAllowedError: The browser says that the request is another site's.
        """
        origin = request.headers.get("origin")
        here = {f"{scheme}://{request.headers.get('host', '')}".lower() for scheme in ("http", "https")}
        if origin is not None and origin.lower() not in here:
            raise NotAllowedError("origin: expected none, or that of this port")
        if request.headers.get("sec-fetch-site", "none") not in _SAME_SITE:
            raise NotAllowedError("sec-fetch-site: expected none or same-origin")

    def check(self, request: web.Request, endpoint: EndpointAddress) -> None:
        """Whether the caller may speak for `endpoint`.

        Raises:
            NotAllowedError: It may not.
        """
        source = source_ip(request)
        if FORWARDED in request.headers and source is not None and self._peers.has_address(source):
            return
        given = bearer(request)
        if given is not None and self._token is not None:
            if not self._token.matches(given):
                raise NotAllowedError("authorization: the token is not the one of --admin-token-file")
            return
        if source is None or source != endpoint.rpartition(":")[0].strip("[]"):
            raise NotAllowedError(
                f"caller: expected the admin token, or a call from the address of {endpoint}, found {source or 'no address'}"
            )


def source_ip(request: web.Request) -> str | None:
    """The address at the other end of the connection in its normal form; None when it has none."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    if not isinstance(peer, (tuple, list)) or not peer:
        return None
    try:
        address = ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def bearer(request: web.Request) -> bytes | None:
    """The token in `authorization: Bearer …`; None without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    return token.strip().encode("utf-8", "surrogateescape")
