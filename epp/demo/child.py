"""One child process of the demo, its log, and its end."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from epp.demo.leash import leashed
from epp.errors import EppError

_POLL_S = 0.02
_TAIL_LINES = 15


class ChildError(EppError):
    """A child process did not start, or ended on its own; the text has the last lines of its log."""


class Child:
    """A program as a process of its own, with all that it writes in one file. It may be started again when it has ended.

    Args:
        name: For messages.
        log_file: Where standard output and errors go, of every start.
    """

    def __init__(self, name: str, *, log_file: Path) -> None:
        self.name = name
        self._log_file = log_file
        self._log_start_bytes = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Process id, also of its session; None before the start."""
        return None if self._process is None else self._process.pid

    async def start(self, arguments: Sequence[str]) -> None:
        """Start `epp` with `arguments`; `until_line` tells when it is ready."""
        await self.run([sys.executable, "-m", "epp", *arguments], _environment())

    async def run(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start any program, with these variables alone."""
        with self._log_file.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *leashed(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
            )

    async def until_line(self, pattern: re.Pattern[str], timeout_s: float) -> re.Match[str]:
        """Wait until the log has what `pattern` finds.

        Raises:
            ChildError: The process ended, or was silent for `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = pattern.search(self.log_text())
                    if found is not None:
                        return found
                    self.check_alive()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ChildError(
                f"{self.name}: expected a line like {pattern.pattern!r} within {timeout_s:g} s, found none; {self.log_tail()}"
            ) from None

    def check_alive(self) -> None:
        """Raise a ChildError if the process has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise ChildError(f"{self.name}: expected to run, found {_ending(self._process.returncode)}; {self.log_tail()}")

    def log_text(self) -> str:
        """What the process has written since its last start."""
        return self._log_file.read_bytes()[self._log_start_bytes :].decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log, for error messages."""
        lines = self.log_text().splitlines()[-_TAIL_LINES:]
        return "its log ends:\n" + "\n".join(f"  {line}" for line in lines) if lines else "its log is empty"

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def terminate(self, patience_s: float) -> str:
        """SIGTERM, SIGKILL after `patience_s`; how the process ended, such as `exit code 0`."""
        if self._process is None:
            return "never started"
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(patience_s):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):  # it has ended at this moment
                    self._process.kill()
        return _ending(await self._process.wait())

    async def gone(self) -> None:
        """SIGKILL, and wait for the end."""
        self.kill()
        if self._process is not None:
            await self._process.wait()


def _ending(return_code: int) -> str:
    return f"exit code {return_code}" if return_code >= 0 else signal.Signals(-return_code).name


def _environment() -> dict[str, str]:
    """This process's variables without those that set flags: the demo is the same on every machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EPP_")}
