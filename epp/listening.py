"""Listening sockets."""

import errno
import socket
from pathlib import Path

from epp.errors import BindError

BACKLOG = 1_024
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """A listening TCP socket.

    An empty `host` means every address, IPv4 and IPv6, on one socket, so that port 0 gives both the same number. Where the
    machine has no IPv6 it is IPv4 alone.

    Args:
        flag: The setting that names the port, for errors.

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
        raise BindError(f"{flag}: expected an address and a free port to listen on, found {where}: {error}") from None


def _everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            # IPv6 is compiled in but switched off, as in many containers: such a bind fails at the address.
            if error.errno not in _NO_SUCH_ADDRESS:
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


def listen_unix(path: str, *, flag: str) -> socket.socket:
    """A listening unix socket; one that a process before left behind is replaced, a live one is not.

    Args:
        flag: The setting that names the path, for errors.

    Raises:
        BindError: The path is taken by something else, or cannot be written.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_behind(path):
            Path(path).unlink()
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise BindError(
            f"{flag}: expected a path where a socket can be made, found {path}: {error.strerror or error}"
        ) from None
    return listening


def _is_left_behind(path: str) -> bool:
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False
