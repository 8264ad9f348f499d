"""The hosts file: names that need no DNS (`localhost`, `--add-host` of Docker, `hostAliases` of Kubernetes)."""

from ipaddress import ip_address
from pathlib import Path

LOCALHOST_ADDRESS = "127.0.0.1"


class HostsFile:
    """The addresses that the hosts file gives to names; read again when it changes."""

    def __init__(self, path: Path = Path("/etc/hosts")) -> None:
        self._path = path
        self._signature: tuple[int, int, int] | None = None
        self._addresses: dict[str, list[str]] = {}

    def addresses(self, name: str) -> tuple[str, ...]:
        """All addresses of `name`, in the order of the file; none when it is not there.

        `localhost` is one machine, and mostly stands there with both loopback addresses: it is 127.0.0.1 when that is
        one of them, or when the file does not say (RFC 6761, section 6.3), so that one server is not two endpoints.
        """
        self._refresh()
        key = name.lower().removesuffix(".")
        found = tuple(dict.fromkeys(self._addresses.get(key, ())))
        if key == "localhost" and (not found or LOCALHOST_ADDRESS in found):
            return (LOCALHOST_ADDRESS,)
        return found

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            if signature != self._signature:
                self._addresses = _parse(self._path.read_text("utf-8", errors="replace"))
                self._signature = signature
        except OSError:
            # No hosts file is no fault: then DNS knows every name.
            self._addresses, self._signature = {}, None


def _parse(text: str) -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        try:
            ip = str(ip_address(address))
        except ValueError:
            continue
        if "%" not in ip:
            for name in names:
                addresses.setdefault(name.lower().removesuffix("."), []).append(ip)
    return addresses
