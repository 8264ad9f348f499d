"""Real parts on real sockets: `epp serve` and Envoy as processes, model servers in this process, all on free ports.

Everything is an async context manager that ends what it started, also when the test fails.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import as_yaml, seconds
from tests.fakes.ext_proc_client import ExtProcClient
from tests.fakes.http1_client import Answer, Connection, connect, fetch
from tests.fakes.upstream import Upstream
from tests.flows.epp_process import PATIENCE_S, START_S, EppProcess, wait_until

__all__ = [
    "FREE_PORT", "PATIENCE_S", "EppProcess", "Setting", "endpoint_arguments", "endpoint_entry", "patient_health_check", "start_all",
    "start_direct", "start_envoy", "start_pair", "start_upstreams", "wait_until", "write_endpoints", "write_entries", "write_file",
]  # fmt: skip

FREE_PORT = HostPort("127.0.0.1", 0)


@asynccontextmanager
async def start_envoy(
    *epp_ports: int, epp_tls: bool = False, adapt: Callable[[Bootstrap], None] | None = None, **options: Any
) -> AsyncIterator[EnvoyProcess]:
    """A real Envoy in front of endpoint pickers on this machine; `options` are those of `EnvoyOptions`.

    `adapt` may change the configuration as an operator would. Unless the options say otherwise, requests reach the endpoint
    that was picked or fail (ORIGINAL_DST), so that no retry covers up a wrong pick.
    """
    chosen = replace(
        EnvoyOptions(**{"original_dst": True, **options}),
        epp=[HostPort("127.0.0.1", port) for port in epp_ports],
        epp_tls=epp_tls,
        listen=FREE_PORT,
        admin=FREE_PORT,
    )
    configuration = bootstrap(chosen)
    if not chosen.original_dst:
        _await_first_list(configuration)
    if adapt is not None:
        adapt(configuration)
    async with EnvoyProcess(as_yaml(configuration), start_timeout_s=START_S) as process:
        yield process


def _await_first_list(configuration: Bootstrap) -> None:
    """Envoy waits for its first list of endpoints, however busy the machine is."""
    assert configuration.static_resources is not None
    for each in configuration.static_resources.clusters:
        if each.eds_cluster_config is not None and each.eds_cluster_config.eds_config is not None:
            each.eds_cluster_config.eds_config.initial_fetch_timeout = seconds(START_S)


def patient_health_check(configuration: Bootstrap) -> None:
    """For `adapt`: a picker that is slow on a busy machine is not taken for a dead one; one that is gone or says no, is."""
    assert configuration.static_resources is not None
    for each in configuration.static_resources.clusters:
        for check in each.health_checks:
            check.timeout = seconds(PATIENCE_S)


@asynccontextmanager
async def start_upstreams(count: int, host: str = "127.0.0.1") -> AsyncIterator[list[Upstream]]:
    """Model servers `upstream-0`, `upstream-1`, …"""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream(f"upstream-{number}", host)) for number in range(count)]


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

    async def fetch_cut(self, **request: Any) -> Answer:
        """An answer that the model server breaks off, once its first half is here."""

        def has_come(server_name: bytes) -> None:
            (server,) = [upstream for upstream in self.upstreams if upstream.name.encode() == server_name]
            server.steps.release()

        return await self.fetch("/cut", on_piece=has_come, **request)

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
                4 * PATIENCE_S,
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


@asynccontextmanager
async def start_direct(upstreams: Sequence[Upstream], *epp_arguments: str) -> AsyncIterator[tuple[EppProcess, ExtProcClient]]:
    """An endpoint picker of these model servers, and a client that asks it without an Envoy."""
    async with (
        EppProcess(*endpoint_arguments(upstreams), *epp_arguments) as epp,
        ExtProcClient(str(epp.grpc)) as client,
    ):
        yield epp, client


def write_endpoints(file: Path, upstreams: Sequence[Upstream], draining: Sequence[Upstream] = ()) -> None:
    """Write an endpoints file in one step, as a careful operator would."""
    write_entries(file, [{**endpoint_entry(upstream), "draining": upstream in draining} for upstream in upstreams])


def endpoint_entry(upstream: Upstream, **more: Any) -> dict[str, Any]:
    """An entry of an endpoints file, with `more` keys of it."""
    return {"name": upstream.name, "address": upstream.host, "port": upstream.port, **more}


def write_entries(file: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write an endpoints file in one step, as a careful operator would."""
    write_file(file, msgspec.json.encode({"endpoints": entries}).decode())


def write_file(file: Path, text: str) -> None:
    """Write a file in one step, so that nobody ever reads a half."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)
