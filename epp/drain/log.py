"""Lines for people in the container's log, which a hook's own output never reaches."""

import contextlib
import os
import select
import sys

CONTAINER_LOG = "/proc/1/fd/1"
"""Standard output of the container's first process."""
MOST_CHARS = 1000
"""Under PIPE_BUF (4096 bytes), so that a pipe takes a line whole or not at all."""


class HookLog:
    """Writes whole lines and never waits: what a full pipe does not take is lost."""

    def __init__(self, file: str | None, stdout: int | None = None) -> None:
        """Args:
        file: Where to write; None for the container's log, or standard output where that may not be written.
        stdout: File descriptor to use instead of standard output.
        """
        own = sys.__stdout__.fileno() if stdout is None and sys.__stdout__ is not None else stdout
        self._descriptor = _open(CONTAINER_LOG if file is None else file)
        self._owned = self._descriptor is not None
        if self._descriptor is None:
            self._descriptor = own

    def line(self, sentence: str) -> None:
        """Write one line."""
        if self._descriptor is None:
            return
        text = "epp drain: " + " ".join(sentence.split())[:MOST_CHARS] + "\n"
        with contextlib.suppress(OSError, ValueError):  # full, closed, or nobody reads any more
            if self._owned or select.select((), (self._descriptor,), (), 0)[1]:
                os.write(self._descriptor, text.encode(errors="replace"))

    def close(self) -> None:
        """Close what was opened."""
        if self._owned and self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._owned = None, False


def _open(file: str) -> int | None:
    """A descriptor that never blocks; None when the file may not be written (or is a pipe that nobody reads)."""
    try:
        return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_CREAT, 0o644)
    except OSError:
        return None
