"""A pod with one model server in it, simulated if nothing else is said, and the kubelet that starts, probes and ends it."""

import asyncio
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from epp.demo.child import Child
from epp.demo.leash import leashed
from epp.envoy.options import HostPort
from tests.flows.epp_process import PATIENCE_S, START_S, wait_until

SHORTEST_GRACE_S = 2.0
"""What the kubelet gives a container after SIGTERM at least, however long the hook took (`minimumGracePeriodInSeconds`)."""
_LISTENING = re.compile(r"listening on http://(\S+)")


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod came to its end.

    Attributes:
        hook_exit_code: Of the preStop hook; None where there was none, or it was killed at the end of the grace period.
        hook_log: What the hook wrote.
        hook_s: How long the hook took.
        killed: SIGKILL was needed.
    """

    hook_exit_code: int | None
    hook_log: str
    hook_s: float
    killed: bool


class Pod:
    """One model server as a process, from its start to its end; the context kills what is left of it.

    Attributes:
        name: Which its answers tell in `x-sim-name`.
        address: Where it listens, once it is started.
    """

    address: HostPort
    start_s = START_S
    """How long it may take to be ready."""

    def __init__(self, name: str, arguments: Sequence[str], *, probe: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """`arguments` follow `epp sim`; `probe` is the path that answers 200 when it is ready."""
        self.name = name
        self._arguments = ["sim", "--name", name, "--host", host, "--port", str(port), *arguments]
        self._probe = probe
        self._folder = tempfile.TemporaryDirectory(prefix="epp-pod-")
        self._child = Child(name, log_file=Path(self._folder.name) / "log")

    async def __aenter__(self) -> Self:
        try:
            self.address = await self._start(self._child)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://{self.address}"

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self._child.running

    async def until_ready(self) -> None:
        """The readiness probe: wait until it succeeds."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as client:

            async def is_ready() -> bool:
                self._child.check_alive()
                try:
                    async with client.get(self.url + self._probe) as response:
                        return response.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    return False

            await wait_until(is_ready, f"{self.name} to be ready", self.start_s)

    async def crash(self) -> None:
        """SIGKILL, and wait for the end."""
        await self._child.gone()

    async def end(self, grace_s: float, hook: Sequence[str | Path] = (), variables: Mapping[str, str] | None = None) -> PodEnd:
        """What the kubelet does with a pod that is deleted: hook, SIGTERM when that has ended, SIGKILL when time is up.

        Args:
            grace_s: The pod's grace period; it begins before the hook.
            hook: The command of preStop; empty: there is none.
            variables: Its environment.
        """
        began_s = time.monotonic()
        exit_code, log = await self._run_hook(grace_s, hook, variables or {}) if hook else (None, "")
        hook_s = time.monotonic() - began_s
        ending = await self._child.terminate(max(grace_s - hook_s, SHORTEST_GRACE_S))
        return PodEnd(exit_code, log, hook_s, killed=ending == "SIGKILL")

    async def _start(self, child: Child) -> HostPort:
        """Start the server; where it listens, or is going to."""
        await child.start(self._arguments)
        return HostPort.parse((await child.until_line(_LISTENING, START_S))[1])

    async def _run_hook(
        self, grace_s: float, hook: Sequence[str | Path], variables: Mapping[str, str]
    ) -> tuple[int | None, str]:
        file = Path(self._folder.name) / "hook.log"
        with file.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *leashed(hook),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(variables),
            )
        try:
            async with asyncio.timeout(grace_s):
                exit_code: int | None = await process.wait()
        except TimeoutError:
            exit_code = None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return exit_code, file.read_text(errors="replace")

    async def _leave(self) -> None:
        await self._child.gone()
        self._folder.cleanup()
