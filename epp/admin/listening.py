"""Sockets of the admin port."""

import errno
import socket

from epp.errors import BindError

BACKLOG = 128
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    An empty `host` means every address, IPv4 and IPv6, on one socket, so that port 0 gives both the same number. Where the
    machine has no IPv6 it is IPv4 alone.

    Raises:
        BindError: `host` is no address of this machine, or the port is taken or not allowed.
    """
    try:
        if host:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            return socket.create_server(address, family=family, backlog=BACKLOG)
        return _everywhere(port)
    except OSError as error:
        where = f"{host or 'every address'} port {port}"
        raise BindError(f"--metrics-port: expected an address and a free port to listen on, found {where}: {error}") from None


def _everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            # IPv6 is compiled in but switched off, as in many containers: such a bind fails at the address.
            if error.errno not in _NO_SUCH_ADDRESS:
                raise
    return socket.create_server(("", port), backlog=BACKLOG)
