"""etcd and kube-apiserver as child processes."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from epp.demo.leash import leashed

_LOG_TAIL_BYTES = 4_000
# Below the ports that Linux gives to outgoing connections (32768 on), so that none of them holds the port when a server that
# was killed starts again on it.
_PORTS = range(20_000, 32_000)
_given: set[int] = set()


def unused_port() -> int:
    """A port of loopback that nobody uses now, and another one each time."""
    for port in random.sample(sorted(set(_PORTS) - _given), 100):
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise OSError(f"expected a free port from {_PORTS[0]} to {_PORTS[-1]}, found 100 in use")


class ServerProcess:
    """A server in the background, any number of times, with all that it writes in one file.

    It belongs to no event loop, so one may outlive a test. The kernel ends it with this process.

    Args:
        name: For messages.
        command: The program and its arguments; each start is the same.
        log_file: Where standard output and errors of all starts go.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log_file: Path) -> None:
        self.name = name
        self._command = command
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; it must be running."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, without waiting until it serves. To be called in the main thread (as `leashed` says)."""
        assert self._process is None
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(leashed(self._command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def check_alive(self) -> None:
        """Raise an AssertionError when it has ended on its own."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise AssertionError(f"expected {self.name} to run, found exit code {code}; {self.log_tail()}")

    def pause(self) -> None:
        """Stop it from running: its connections stay and are silent."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A thread on another processor may answer something before the signal reaches it.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it run again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end; does nothing when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log_tail(self) -> str:
        """The last that it wrote."""
        if not self._log_file.exists():
            return f"{self.name} was never started"
        return f"{self.name} wrote: {self._log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors='replace')}"
