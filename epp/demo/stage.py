"""All processes of the demo: model servers, the picker, Envoy. Ports are free ones, files are in a folder of its own."""

import asyncio
import importlib
import importlib.util
import os
import re
import shlex
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from epp.demo.child import Child, ChildError
from epp.demo.fleet import FLEET, HOST, FileEntry, ServerPlan, endpoints_text, replace_file, sim_arguments
from epp.demo.leash import leashed
from epp.demo.picker_pages import PagesError, PickerPages
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyError, EnvoyProcess, find_envoy

START_TIMEOUT_S = 30.0
STOP_PATIENCE_S = 2.0

_SIM_LISTENS = re.compile(r"listening on http://\S+:(\d+)")
_PICKER_LISTENS = re.compile(r"^listening grpc=\S+:(\d+) health=\S+:(\d+) metrics=\S+:(\d+)$", re.MULTILINE)
_POLL_S = 0.05


class ModelServer:
    """One simulated model server.

    Attributes:
        child: Its process.
        port: Its port, 0 before the first start.
        entry: What the endpoints file says of it; None when it is not in there.
    """

    def __init__(self, plan: ServerPlan, folder: Path, *, seed: int) -> None:
        self.plan = plan
        self.child = Child(plan.name, log_file=folder / f"{plan.name}.log")
        self.port = 0
        self.entry: FileEntry | None = None
        self._seed = seed

    async def start(self) -> None:
        """Start the process, after the first time on the same port."""
        await self.child.start(sim_arguments(self.plan, port=self.port, seed=self._seed))

    async def listening(self) -> None:
        """Wait until it takes requests."""
        self.port = int((await self.child.until_line(_SIM_LISTENS, START_TIMEOUT_S))[1])


class Stage:
    """Everything that runs, as an async context manager; leaving it ends every process.

    Attributes:
        folder: Where the endpoints file and the logs are.
        servers: The model servers by name.
        pages: The admin port of the picker.
        grpc_port: Where the picker answers Envoy.
        envoy: The proxy.
    """

    folder: Path
    pages: PickerPages
    grpc_port: int
    envoy: EnvoyProcess

    def __init__(self, *, seed: int, say: Callable[[str], None]) -> None:
        """`say` is told of each step of the start."""
        self._seed = seed
        self._say = say
        self._stack = AsyncExitStack()
        self.servers: dict[str, ModelServer] = {}

    async def __aenter__(self) -> Self:
        """Start everything.

        Raises:
            ChildError: One of our processes did not start.
            EnvoyError: Envoy did not start, or something for it is not installed.
        """
        require_envoy()
        async with AsyncExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-demo-")))
            await self._start_servers(stack)
            self._say(f"{len(self.servers)} model servers are up")
            self._picker = Child("epp serve", log_file=self.folder / "epp-serve.log")
            stack.push_async_callback(self._picker.terminate, STOP_PATIENCE_S)
            await self._start_picker(stack)
            self._say("the picker is ready")
            self.envoy = await stack.enter_async_context(self._make_envoy())
            self._say("Envoy is up")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def endpoints_file(self) -> Path:
        """What the picker watches."""
        return self.folder / "endpoints.yaml"

    @property
    def envoy_url(self) -> str:
        """Where clients send requests."""
        return f"http://{self.envoy.listener()}"

    def write_endpoints(self) -> None:
        """Replace the endpoints file by what the servers' entries say."""
        entries = [server.entry for server in self.servers.values() if server.entry is not None]
        replace_file(self.endpoints_file, endpoints_text(entries))

    def drain(self, name: str) -> None:
        """Write `draining: true` for the server."""
        server = self.servers[name]
        assert server.entry is not None
        server.entry = replace(server.entry, draining=True)
        self.write_endpoints()

    def remove(self, name: str) -> None:
        """Take the server out of the endpoints file."""
        self.servers[name].entry = None
        self.write_endpoints()

    def check_alive(self, *absent: str) -> None:
        """Raise an error if a process has ended that should run; the servers `absent` need not."""
        for name, server in self.servers.items():
            if name not in absent:
                server.child.check_alive()
        self._picker.check_alive()
        if not _exists(self.envoy.pid):
            raise EnvoyError(f"envoy: expected to run, found it ended; {self.envoy.log_tail()}")

    async def _start_servers(self, stack: AsyncExitStack) -> None:
        for plan in FLEET:
            server = self.servers[plan.name] = ModelServer(plan, self.folder, seed=self._seed)
            stack.push_async_callback(server.child.gone)
            await server.start()
        for server in self.servers.values():
            await server.listening()
            server.entry = FileEntry(name=server.plan.name, port=server.port, weight=server.plan.weight)

    async def _start_picker(self, stack: AsyncExitStack) -> None:
        self.write_endpoints()
        await self._picker.start(
            [
                *("serve", "--endpoints-file", str(self.endpoints_file), "--host", HOST),
                *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
                *("--drain-timeout", "0s", "--log-format", "console"),
            ]
        )
        # Envoy's typed messages take a second to load: while the picker starts, nobody waits for that.
        await asyncio.to_thread(importlib.import_module, "epp.envoy.config")
        grpc, _, metrics = (await self._picker.until_line(_PICKER_LISTENS, START_TIMEOUT_S)).groups()
        self.grpc_port = int(grpc)
        self.pages = await stack.enter_async_context(PickerPages(f"http://{HOST}:{metrics}"))
        await self._until_ready(self._picker)

    async def _until_ready(self, picker: Child) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    picker.check_alive()
                    try:
                        if await self.pages.is_ready():
                            return
                    except PagesError:
                        pass  # not listening yet
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ChildError(
                f"{picker.name}: expected /readyz to answer 200 within {START_TIMEOUT_S:g} s, it did not; {picker.log_tail()}"
            ) from None

    def _make_envoy(self) -> EnvoyProcess:
        # Only now: the typed messages are an extra.
        from epp.envoy.config import bootstrap
        from epp.envoy.typed import as_yaml

        any_port = HostPort(HOST, 0)
        options = EnvoyOptions(epp=[HostPort(HOST, self.grpc_port)], listen=any_port, admin=any_port)
        executable = _leashed_script(self.folder / "envoy", find_envoy())
        return EnvoyProcess(as_yaml(bootstrap(options)), executable=executable, start_timeout_s=START_TIMEOUT_S)


def require_envoy() -> None:
    """Raise an EnvoyError that says how to get it, when Envoy or its configuration's messages are missing."""
    find_envoy()
    if importlib.util.find_spec("envoy_data_plane") is None:
        raise EnvoyError(
            "envoy-data-plane: expected to be installed, found it missing; `pip install 'inference-epp[demo]'` brings it"
        )


def _leashed_script(file: Path, program: Path) -> Path:
    """A program that runs `program` with the same arguments, on a leash held by this process."""
    file.write_text(f'#!/bin/sh\nexec {shlex.join(leashed([program]))} "$@"\n', encoding="utf-8")
    file.chmod(0o700)
    return file


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
