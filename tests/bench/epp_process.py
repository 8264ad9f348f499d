"""`epp serve` as users start it, on free ports, alone on its core."""

import asyncio
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from tests.bench.load import ROOT
from tests.bench.machine import BenchError, on_core

_START_S = 30.0
_STOP_S = 10.0
_DRAIN_S = 0.1
_POLL_S = 0.02
_PORTS = re.compile(r"grpc=\S+:(\d+) .*metrics=\S+:(\d+)\n")
_SCRAPES = re.compile(r"^epp_scrape_duration_seconds_count (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEpp:
    """An endpoint picker that is ready.

    Attributes:
        grpc_port: For Envoy.
        metrics_port: For `/metrics`.
        start_s: From the start of the process until `/readyz` said yes, the time of importing included.
    """

    pid: int
    grpc_port: int
    metrics_port: int
    start_s: float

    async def scrapes_total(self) -> float:
        """How many pages it has read so far."""
        async with aiohttp.ClientSession() as session, session.get(_url(self.metrics_port, "metrics")) as response:
            found = _SCRAPES.search(await response.text())
        if found is None:
            raise BenchError("/metrics: expected epp_scrape_duration_seconds_count, found none")
        return float(found[1])


@asynccontextmanager
async def start_epp(endpoints: Sequence[tuple[str, int]], core: int, wrapper: Sequence[str] = ()) -> AsyncIterator[RunningEpp]:
    """`epp serve` with these endpoints; see `start_serve`."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        file = Path(folder) / "endpoints.json"
        entries = [{"name": f"e{i}", "address": host, "port": port} for i, (host, port) in enumerate(endpoints, 1)]
        file.write_bytes(msgspec.json.encode({"endpoints": entries}))
        async with start_serve(["--endpoints-file", str(file)], core, wrapper) as running:
            yield running


@asynccontextmanager
async def start_serve(source: Sequence[str], core: int, wrapper: Sequence[str] = ()) -> AsyncIterator[RunningEpp]:
    """`epp serve` with default settings but for ports and logging; ended with SIGTERM.

    Args:
        source: Flags that say where the endpoints come from.
        wrapper: Arguments of Python between its name and `-m epp`, such as `-m cProfile -o FILE`.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        ports = [word for flag in ("--grpc-port", "--grpc-health-port", "--metrics-port") for word in (flag, "0")]
        options = ["--host", "127.0.0.1", "--secure-serving=false", "--log-level", "error", *ports]
        log = Path(folder) / "log"
        began_s = time.perf_counter()
        with log.open("wb") as output, on_core(core):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *wrapper, "-m", "epp", "serve", *source, *options),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            grpc_port, metrics_port = await _until_ready(process, log)
            start_s = time.perf_counter() - began_s
            yield RunningEpp(pid=process.pid, grpc_port=grpc_port, metrics_port=metrics_port, start_s=start_s)
            if process.returncode is not None:
                raise BenchError(f"epp serve: expected to run, ended with {process.returncode}: {_tail(log)}")
        finally:
            await _end(process)


async def _until_ready(process: asyncio.subprocess.Process, log: Path) -> tuple[int, int]:
    ports: tuple[int, int] | None = None
    end_s = time.perf_counter() + _START_S
    async with aiohttp.ClientSession() as session:
        while time.perf_counter() < end_s:
            if process.returncode is not None:
                break
            if ports is None and (found := _PORTS.search(log.read_text())):
                ports = int(found[1]), int(found[2])
            if ports is not None:
                async with session.get(_url(ports[1], "readyz")) as response:
                    if response.status == 200:
                        return ports
            await asyncio.sleep(_POLL_S)
    raise BenchError(f"epp serve: expected to be ready within {_START_S:g} s: {_tail(log)}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await asyncio.sleep(_DRAIN_S)
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)  # the second one ends the drain, in which nothing happens here
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _url(port: int, page: str) -> str:
    return f"http://127.0.0.1:{port}/{page}"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
