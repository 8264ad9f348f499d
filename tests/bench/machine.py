"""The machine: its cores, what processes on it have used, and how to name it in a record."""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from epp.envoy.process import find_envoy
from epp.errors import EppError

_PROC = Path("/proc")
_PACKAGES = ("grpcio", "uvloop", "protobuf", "msgspec", "aiohttp")
_CHILDREN_TIMES = slice(11, 15)
"""utime, stime, cutime, cstime in /proc/PID/stat, counted from the field after the name (proc_pid_stat(5))."""


class BenchError(EppError):
    """A measurement cannot be made."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where things run.

    Attributes:
        epp: The endpoint picker alone.
        others: Envoy, model servers, load generator, and this program. The same as `epp` where there is one core only.
    """

    epp: int
    others: int

    @property
    def apart(self) -> bool:
        return self.epp != self.others


def cores() -> Cores:
    """The first two cores that this process may use.

    Raises:
        BenchError: This system does not tell, or does not tell what processes use.
    """
    if not hasattr(os, "sched_getaffinity") or not (_PROC / "self" / "stat").exists():
        raise BenchError("bench: expected Linux (/proc and sched_setaffinity), found another system")
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[min(1, len(usable) - 1)])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What this thread starts inside, runs on `core` only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process and all its children; steps of 0.01 s on most systems."""
    ticks = 0
    for one in _with_children(pid):
        try:
            fields = (_PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended while we looked: its parent has its time now, or will
            continue
        ticks += sum(int(field) for field in fields[_CHILDREN_TIMES])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    kib = 0
    for one in _with_children(pid):
        try:
            lines = (_PROC / str(one) / "status").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return kib / 1024


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of each thread, by `name/id`."""
    found = {}
    for stat in (_PROC / str(pid) / "task").glob("*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:  # ended while we looked
            continue
        fields = rest.split()
        name = head.partition("(")[2]
        found[f"{name}/{stat.parent.name}"] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _with_children(pid: int) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        try:
            for task in (_PROC / str(one) / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue


def description() -> dict[str, Any]:
    """What a record of measurements says of where they were made."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "versions": {
            "envoy": _envoy_version(),
            "python": platform.python_version(),
            **{package: _version(package) for package in _PACKAGES},
        },
    }


def _cpu_model() -> str:
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _envoy_version() -> str:
    # envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL
    said = subprocess.run([find_envoy(), "--version"], capture_output=True, text=True, check=True).stdout
    build = said.partition("version:")[2].strip()
    return build.split("/")[1] if "/" in build else build


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
