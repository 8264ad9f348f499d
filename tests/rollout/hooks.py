"""The preStop hook of a pod, as a command line: `epp drain`, or the script that it prints."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.flows.epp_process import ROOT
from tests.rollout.engines import MANNERS
from tests.rollout.pod import Pod

COMMAND, SCRIPT = "command", "script"
KINDS = (COMMAND, SCRIPT)

Hook = Callable[[Pod], Awaitable[Sequence[str | Path]]]
"""The command line for a pod, as its manifest has it; an empty one is no hook."""


async def no_hook(pod: Pod) -> Sequence[str | Path]:
    """As a pod without `lifecycle.preStop`."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainHook:
    """`epp drain`, for the pods of one engine.

    Attributes:
        epp_url: The picker's admin port; None: the hook asks the engine alone.
        token_file: With the picker's admin token, where the pods have other addresses than the hook's calls.
        folder: Where scripts are written.
    """

    engine: str
    kind: str
    epp_url: str | None
    min_wait_s: float
    max_wait_s: float
    folder: Path
    token_file: Path | None = None

    async def __call__(self, pod: Pod) -> Sequence[str | Path]:
        command = [sys.executable, "-m", "epp", "drain", *self._flags(pod)]
        if self.kind == COMMAND:
            return command
        file = self.folder / f"{pod.name}.sh"
        file.write_bytes(await _output_of([*command, "--print-script"]))
        return ["sh", file]

    def _flags(self, pod: Pod) -> list[str]:
        flags = ["--engine", self.engine, "--url", pod.url, "--endpoint", str(pod.address), "--log-file", "/dev/stdout"]
        path = MANNERS[self.engine].metrics_path
        if path is not None:
            flags += ["--metrics-url", pod.url + path]
        if self.epp_url is not None:
            flags += ["--epp-url", self.epp_url]
        if self.token_file is not None:
            flags += ["--epp-token-file", str(self.token_file)]
        times = {"--min-wait": self.min_wait_s, "--max-wait": self.max_wait_s}
        return [*flags, *(word for flag, value_s in times.items() for word in (flag, f"{value_s:g}s")), "--interval", "200ms"]


async def _output_of(command: Sequence[str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, f"expected {' '.join(command[2:])} to print, found: {errors.decode(errors='replace')}"
    return output
