"""`epp drain` and the script that it prints, both at work with the same flags."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.drain.script_runs import script_process
from tests.flows.epp_process import wait_until
from tests.patience import PATIENCE_S
from tests.sim.process import ROOT


class DrainProcess:
    """A running hook, the command or the script."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def log(self) -> str:
        return self._file.read_text() if self._file.exists() else ""

    async def says(self, text: str) -> None:
        await wait_until(lambda: text in self.log, f"the log to have {text!r}")

    async def ends(self) -> str:
        """Wait for the end, which must be with 0; the log."""
        async with asyncio.timeout(PATIENCE_S):
            out, errors = await self.process.communicate()
        assert (self.process.returncode, errors.decode()) == (0, "")
        return self.log + out.decode()


@asynccontextmanager
async def drain_process(
    folder: Path, *arguments: str, log: bool = True, environment: Mapping[str, str] | None = None
) -> AsyncIterator[DrainProcess]:
    """`epp drain` with these arguments; it is killed at the end if it has not ended."""
    file = folder / "hook.log"
    to = ["--log-file", str(file)] if log else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "epp", "drain", *arguments, *to, cwd=ROOT, env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield DrainProcess(process, file)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def both_hooks(
    folder: Path, programs: Sequence[str], *arguments: str
) -> AsyncIterator[tuple[DrainProcess, DrainProcess]]:
    """The command, and the script under dash in an image that has these programs."""
    file = folder / "script.log"
    words = [sys.executable, "-m", "epp", "drain", "--print-script", *arguments, "--log-file", str(file)]
    script = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    async with AsyncExitStack() as stack:
        command = await stack.enter_async_context(drain_process(folder, *arguments))
        process = await stack.enter_async_context(script_process(script, folder, "dash", programs))
        yield command, DrainProcess(process, file)
