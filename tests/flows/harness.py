"""Real parts on real sockets: `epp serve` and Envoy as processes, model servers in this process, all on free ports.

Everything is an async context manager that ends what it started, also when the test fails.
"""

import asyncio
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from prometheus_client.parser import text_string_to_metric_families

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import as_yaml
from tests.fakes.http1_client import Answer, Connection, connect, fetch
from tests.fakes.upstream import Upstream

ROOT = Path(__file__).parents[2]
FREE_PORT = HostPort("127.0.0.1", 0)
_LISTENING = re.compile(r"\b(grpc|health|metrics)=(\S+)")
_POLL_S = 0.02


async def wait_until(condition: Callable[[], object | Awaitable[object]], what: str, timeout_s: float = 10.0) -> None:
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


@asynccontextmanager
async def start_envoy(
    *epp_ports: int, epp_tls: bool = False, adapt: Callable[[Bootstrap], None] | None = None, **options: Any
) -> AsyncIterator[EnvoyProcess]:
    """A real Envoy in front of endpoint pickers on this machine; `options` are those of `EnvoyOptions`.

    `adapt` may change the configuration as an operator would.
    """
    chosen = replace(
        EnvoyOptions(**options),
        epp=[HostPort("127.0.0.1", port) for port in epp_ports],
        epp_tls=epp_tls,
        listen=FREE_PORT,
        admin=FREE_PORT,
    )
    configuration = bootstrap(chosen)
    if adapt is not None:
        adapt(configuration)
    async with EnvoyProcess(as_yaml(configuration)) as process:
        yield process


@asynccontextmanager
async def start_upstreams(count: int, host: str = "127.0.0.1") -> AsyncIterator[list[Upstream]]:
    """Model servers `upstream-0`, `upstream-1`, …"""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream(f"upstream-{number}", host)) for number in range(count)]


class EppProcess:
    """`epp serve` as a process: `async with EppProcess("--endpoint", "127.0.0.1:8000") as epp: epp.grpc`.

    Attributes:
        grpc, health, metrics: The ports it listens on, once the context is entered.
    """

    grpc: HostPort
    health: HostPort
    metrics: HostPort

    def __init__(self, *arguments: str, tls: bool = False, ready: bool = True, start_timeout_s: float = 20.0) -> None:
        """`arguments` follow `epp serve`; with `ready`, entering waits until `/readyz` says so; `tls` is the default one."""
        self._arguments = arguments
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

    async def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Wait until `/readyz` answers 200."""
        await wait_until(self._is_ready, "/readyz to answer 200", timeout_s)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the metrics port."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
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

    async def wait_idle(self, timeout_s: float = 1.0) -> None:
        """Wait until no endpoint has a request in flight; those that have left the pool are among them."""

        async def is_idle() -> bool:
            return all(not endpoint["in_flight_requests"] for endpoint in (await self.pool()).values())

        await wait_until(is_idle, "no request in flight on any endpoint", timeout_s)

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

    def log_records(self, level: str | None = None) -> list[dict[str, Any]]:
        """The log's lines so far, those of `level` alone when it is given."""
        lines = [line for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
        records = [msgspec.json.decode(line) for line in lines]
        return [record for record in records if level in (None, record["level"])]

    def terminate(self) -> None:
        """SIGTERM; the process goes on until it has drained."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    async def wait(self, timeout_s: float = 40.0) -> int:
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
        except aiohttp.ClientError:
            return False


def endpoint_arguments(upstreams: Sequence[Upstream]) -> list[str]:
    """`--endpoint …` for each of them."""
    return [word for upstream in upstreams for word in ("--endpoint", upstream.endpoint)]


@dataclass(frozen=True, slots=True)
class Setting:
    """A whole scene: clients talk to `listen`, Envoy asks `epp`, `upstreams` answer."""

    envoy: EnvoyProcess
    epp: EppProcess
    upstreams: list[Upstream]

    @property
    def listen(self) -> HostPort:
        """Where clients connect to."""
        return self.envoy.listener()

    async def fetch(self, path: str = "/v1/completions", **request: Any) -> Answer:
        """One request through Envoy on a connection of its own; arguments as in `Connection.send`."""
        return await fetch(self.listen.host, self.listen.port, path, **request)

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        """A client's connection to Envoy."""
        return connect(self.listen.host, self.listen.port)

    @asynccontextmanager
    async def at_once(
        self, count: int, path: str = "/v1/completions", **request: Any
    ) -> AsyncIterator[list[asyncio.Task[Answer]]]:
        """`count` requests at once, each on a connection of its own, all of them at the model servers when this enters.

        The servers must hold them: a closed gate, or a path such as `/held`. What has not ended at the exit is cut.
        """
        before = self.active_requests
        tasks = [asyncio.create_task(self.fetch(path, **request)) for _ in range(count)]
        try:
            await wait_until(
                lambda: self.active_requests >= before + count or any(task.done() for task in tasks),
                f"{count} more requests at the model servers",
            )
            early = [task.result() for task in tasks if task.done()]
            assert not early, f"expected the model servers to hold every request, found {early[0]}"
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def active_requests(self) -> int:
        """Requests at the model servers now."""
        return sum(self.shares())

    def shares(self) -> list[int]:
        """Requests at each model server now."""
        return [upstream.active_requests for upstream in self.upstreams]

    @contextmanager
    def gates_closed(self) -> Iterator[None]:
        """Every model server holds its answers, until the end or until `open_gates`."""
        for upstream in self.upstreams:
            upstream.gate.clear()
        try:
            yield
        finally:
            self.open_gates()

    def open_gates(self) -> None:
        """Let the model servers answer."""
        for upstream in self.upstreams:
            upstream.gate.set()


@asynccontextmanager
async def start_all(
    upstream_count: int = 2, *, epp_arguments: Sequence[str] = (), tls: bool = False, **envoy_options: Any
) -> AsyncIterator[Setting]:
    """Model servers, an endpoint picker that knows them, and an Envoy that asks it."""
    async with (
        start_upstreams(upstream_count) as upstreams,
        start_pair(upstreams, *endpoint_arguments(upstreams), *epp_arguments, tls=tls, **envoy_options) as scene,
    ):
        yield scene


@asynccontextmanager
async def start_pair(
    upstreams: list[Upstream], *epp_arguments: str, tls: bool = False, **envoy_options: Any
) -> AsyncIterator[Setting]:
    """An endpoint picker and an Envoy that asks it, in front of model servers that run already."""
    async with (
        EppProcess(*epp_arguments, tls=tls) as epp,
        start_envoy(epp.grpc.port, epp_tls=tls, **envoy_options) as envoy,
    ):
        yield Setting(envoy, epp, upstreams)


def write_endpoints(file: Path, upstreams: Sequence[Upstream], draining: Sequence[Upstream] = ()) -> None:
    """Write an endpoints file in one step, as a careful operator would."""
    write_entries(file, [{**endpoint_entry(upstream), "draining": upstream in draining} for upstream in upstreams])


def endpoint_entry(upstream: Upstream, **more: Any) -> dict[str, Any]:
    """An entry of an endpoints file, with `more` keys of it."""
    return {"name": upstream.name, "address": upstream.host, "port": upstream.port, **more}


def write_entries(file: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write an endpoints file in one step, as a careful operator would."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode({"endpoints": entries}))
    fresh.replace(file)
