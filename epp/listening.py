"""Listening sockets."""

import errno
import os
import socket
from pathlib import Path

from epp.errors import BindError

BACKLOG = 1_024
HOST_FLAG = "--host"
HOST_SHOWN_MAX_CHARS = 100
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """A listening TCP socket.

    An empty `host` means every address, IPv4 and IPv6, on one socket, so that port 0 gives both the same number. Where the
    machine has no IPv6 it is IPv4 alone.

    Args:
        flag: The setting that names the port, for errors; a wrong `host` is blamed on `--host`.

    Raises:
        BindError: `host` is no address of this machine, or the port is taken or not allowed.
    """
    try:
        if host:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            return socket.create_server(address, family=family, backlog=BACKLOG)
        return _everywhere(port)
    except (UnicodeError, socket.gaierror) as error:
        # Both come from looking up `host`; an empty one is not looked up.
        raise _no_address(host, error) from None
    except OSError as error:
        if host and error.errno in _NO_SUCH_ADDRESS:
            raise _no_address(host, error) from None
        why = "which is in use" if error.errno == errno.EADDRINUSE else _reason(error)
        raise BindError(f"{flag}: expected a free port on {host or 'every address'}, found {port}, {why}") from None


def _no_address(host: str, error: Exception) -> BindError:
    found = repr(host if len(host) <= HOST_SHOWN_MAX_CHARS else host[:HOST_SHOWN_MAX_CHARS] + "…")
    why = _reason(error) if isinstance(error, OSError) else "which cannot be a hostname"
    return BindError(f"{HOST_FLAG}: expected an address of this machine, found {found}, {why}")


def _reason(error: OSError) -> str:
    """The system's words, without the address that Python adds; numbers below 0 are those of name lookup."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


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
