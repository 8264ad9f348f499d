"""`epp serve` as a process, on free ports."""

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from epp.envoy.options import HostPort

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"\b(grpc|health|metrics)=(\S+)")
_POLL_S = 0.02
PATIENCE_S = 30.0
"""How long a condition may take to come true on a busy machine; shorter than the time limits of the picker itself, which
would make some of them true in the end."""
START_S = 100.0
"""The same for a program to start."""


async def wait_until(condition: Callable[[], object | Awaitable[object]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition, sync or async, to be true; after `timeout_s` an AssertionError that says what was awaited."""
    end_s = time.monotonic() + timeout_s
    while True:
        result = condition()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return
        if time.monotonic() > end_s:
            raise AssertionError(f"expected within {timeout_s:g} s: {what}")
        await asyncio.sleep(_POLL_S)


class EppProcess:
    """`epp serve` as a process: `async with EppProcess("--endpoint", "127.0.0.1:8000") as epp: epp.grpc`.

    A scrape may take long, and what it said is believed for long, where the arguments do not say otherwise: a busy machine
    must not change what the picker knows.

    Attributes:
        grpc, health, metrics: The ports it listens on, once the context is entered.
    """

    grpc: HostPort
    health: HostPort
    metrics: HostPort

    def __init__(self, *arguments: str, tls: bool = False, ready: bool = True, start_timeout_s: float = START_S) -> None:
        """`arguments` follow `epp serve`; with `ready`, entering waits until `/readyz` says so; `tls` is the default one."""
        self._arguments = _patient(arguments)
        self._tls = tls
        self._ready = ready
        self._start_timeout_s = start_timeout_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log = ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
            await wait_until(self._read_ports, "a line `listening grpc=… health=… metrics=…`", self._start_timeout_s)
            if self._ready:
                await self.wait_ready(self._start_timeout_s)
        except BaseException as error:
            await self.kill()
            error.add_note(f"epp serve wrote: {self.log_text()[-4000:]}")
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"epp serve wrote: {self.log_text()[-4000:]}")
        await self.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    async def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `/readyz` answers 200."""
        await wait_until(self._is_ready, "/readyz to answer 200", timeout_s)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the metrics port."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session,
            session.get(f"http://{self.metrics}{path}") as response,
        ):
            return response.status, await response.text()

    async def pool(self) -> dict[str, dict[str, Any]]:
        """The endpoints of `/api/v1/pool` by `ip:port`."""
        _, body = await self.get("/api/v1/pool")
        return {endpoint["endpoint"]: endpoint for endpoint in msgspec.json.decode(body)["endpoints"]}

    async def in_flight(self) -> int:
        """Requests in flight over all endpoints, as the picker counts them."""
        return sum(endpoint["in_flight_requests"] for endpoint in (await self.pool()).values())

    async def number(self, endpoint: str, key: str) -> float | None:
        """One number of an endpoint in `/api/v1/pool`."""
        value: float | None = (await self.pool())[endpoint][key]
        return value

    async def wait_idle(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no endpoint has a request in flight; those that have left the pool are among them."""

        async def is_idle() -> bool:
            return all(not endpoint["in_flight_requests"] for endpoint in (await self.pool()).values())

        await wait_until(is_idle, "no request in flight on any endpoint", timeout_s)

    async def wait_scraped(self) -> None:
        """Wait until a scrape of each endpoint that began after this call has been read."""
        began_s = time.monotonic()

        async def are_scraped() -> bool:
            asked_s = time.monotonic()
            ages = [endpoint["metrics_age_s"] for endpoint in (await self.pool()).values()]
            # An age is of a moment after the question, rounded to a millisecond.
            return all(age_s is not None and asked_s - age_s > began_s + 0.001 for age_s in ages)

        await wait_until(are_scraped, "a new scrape of each endpoint", 4 * PATIENCE_S)

    async def metric(self, name: str, /, **labels: str) -> float | None:
        """The sum over the samples of that name whose labels include `labels`; None when there is none."""
        _, text = await self.get("/metrics")
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None

    async def failed_requests(self) -> float:
        """Requests that count as failed so far."""
        return await self.metric("llm_d_epp_request_error_total") or 0.0

    def rss_bytes(self) -> int:
        """Resident memory now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def cpu_s(self) -> float:
        """CPU time used so far, in steps of 10 ms: what a task costs, however busy the machine is."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_records(self, level: str | None = None) -> list[dict[str, Any]]:
        """The log's lines so far, those of `level` alone when it is given."""
        lines = [line for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
        records = [msgspec.json.decode(line) for line in lines]
        return [record for record in records if level in (None, record["level"])]

    def terminate(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to end; it goes on until it has drained."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(by)

    async def wait(self, timeout_s: float = 4 * PATIENCE_S) -> int:
        """Wait for the end; the exit code."""
        assert self._process is not None
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL, as a crash; does nothing when it has ended."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        if self._folder is not None:
            self._log = self.log_text()
            self._folder.cleanup()
            self._folder = None

    def log_text(self) -> str:
        """Standard output and error so far."""
        if self._folder is None:
            return self._log
        folder = Path(self._folder.name)
        return "".join(file.read_text(errors="replace") for file in (folder / "stdout", folder / "stderr") if file.exists())

    async def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="epp-serve-")
        folder = Path(self._folder.name)
        ports = [word for flag in ("--grpc-port", "--grpc-health-port", "--metrics-port") for word in (flag, "0")]
        secure = [] if self._tls else ["--secure-serving=false"]
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "epp", "serve", "--host", "127.0.0.1", *ports, *secure, *self._arguments),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def _read_ports(self) -> bool:
        assert self._process is not None
        assert self._folder is not None
        if self._process.returncode is not None:
            raise AssertionError(f"expected epp serve to run, found exit code {self._process.returncode}")
        text = (Path(self._folder.name) / "stdout").read_text()
        if not text.endswith("\n"):
            return False
        found = {name: HostPort.parse(address) for name, address in _LISTENING.findall(text)}
        if found.keys() < {"grpc", "health", "metrics"}:
            return False
        self.grpc, self.health, self.metrics = found["grpc"], found["health"], found["metrics"]
        return True

    async def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise AssertionError(f"expected epp serve to run, found exit code {self._process.returncode}")
        try:
            return (await self.get("/readyz"))[0] == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


def _patient(arguments: tuple[str, ...]) -> list[str]:
    """The arguments, with more time for scrapes where they do not speak of it."""
    patient = list(arguments)
    if not any(word.startswith("--config-file") for word in patient):
        if "--config-text" not in patient:
            patient += ["--config-text", "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}"]
        at = patient.index("--config-text") + 1
        document = yaml.safe_load(patient[at])
        document["scrape"] = {"timeout": f"{PATIENCE_S:g}s", **document.get("scrape", {})}
        patient[at] = msgspec.json.encode(document).decode()
    if not any(word.startswith("--metrics-staleness-threshold") for word in patient):
        patient += ["--metrics-staleness-threshold", "10m"]
    return patient
