"""Seeing that a file has another content, however it got there. Blocking; called from a thread.

Looking at the file a few times a second instead of asking the kernel to tell: notifications name inodes and folders, so
each way of replacing a file (rename, the `..data` link of a ConfigMap, delete and write again) needs its own watch, and
mounts from elsewhere (NFS, 9p, FUSE, a bind-mounted file) tell nothing at all. A look costs an open and an fstat.
Opening, and not only asking for the file's attributes, matters on NFS: it is what makes the client ask the server.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from epp.clock import Clock

FILE_MAX_BYTES = 16 << 20
TIMESTAMP_GRANULARITY_S = 2.5
"""Within this after a change a further one may leave size and times equal (FAT counts in steps of two seconds, NFS and
older filesystems of one), so the content itself is compared."""


@dataclass(frozen=True, slots=True)
class FileLook:
    """Something new about the file: another content, or another reason why it cannot be read."""

    content: bytes = b""
    problem: str | None = None


class WatchedFile:
    """One file that is looked at again and again.

    The path is followed anew on each look, so links may be turned. Only regular files are read: a pipe would block.
    """

    def __init__(self, path: Path, clock: Clock, *, max_bytes: int = FILE_MAX_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._signature: tuple[int, ...] | None = None
        self._digest: bytes | None = None
        self._problem: str | None = None
        self._compare_until_s = 0.0

    def look(self) -> FileLook | None:
        """What is new since the last call; None when nothing is."""
        try:
            return self._read()
        except OSError as error:
            return self._unreadable(f"expected a readable file, found: {error.strerror or error}")

    def _read(self) -> FileLook | None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return self._unreadable("expected a regular file, found another kind")
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if signature == self._signature and self._clock.monotonic_s() >= self._compare_until_s:
                return None
            content = b"" if status.st_size > self._max_bytes else file.read(self._max_bytes + 1)
        if max(status.st_size, len(content)) > self._max_bytes:
            return self._unreadable(f"expected at most {self._max_bytes} bytes, found more")
        return self._compare(signature, content)

    def _compare(self, signature: tuple[int, ...], content: bytes) -> FileLook | None:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if signature != self._signature or digest != self._digest:
            self._compare_until_s = self._clock.monotonic_s() + TIMESTAMP_GRANULARITY_S
        same = digest == self._digest and self._problem is None
        self._signature, self._digest, self._problem = signature, digest, None
        return None if same else FileLook(content)

    def _unreadable(self, problem: str) -> FileLook | None:
        if problem == self._problem:
            return None
        self._signature = self._digest = None
        self._problem = problem
        return FileLook(problem=problem)
