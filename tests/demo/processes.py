"""Whether processes live."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process has not ended; a zombie that nobody waits for has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def children_of(pid: int) -> dict[int, str]:
    """Its child processes by id, with their command lines."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except OSError:  # ended while we looked
            continue
        if parent == pid:
            children[int(entry.name)] = command
    return children


async def all_end(pids: Iterable[int], timeout_s: float = 90.0) -> None:
    """Wait until none of them runs."""
    deadline_s = time.monotonic() + timeout_s
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline_s, f"expected to end: {running}"
        await asyncio.sleep(0.02)
