"""Runs the printed script as an image would: under one shell, with exactly the programs that the image has."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.tools import require_tool

SHELLS = ("dash", "bash", "busybox")
ALWAYS = ("head", "tr", "sleep", "cat", "sh")
"""Of coreutils and the shell itself: in every image that has a shell."""
ALPINE = tuple(f"busybox-{name}" for name in (*ALWAYS, "timeout", "awk", "wget"))
"""What an image has whose programs are all busybox."""


def programs_in(folder: Path, names: Sequence[str]) -> Path:
    """A folder for the PATH with these programs and `ALWAYS` alone; `busybox-wget` is busybox's wget under its own name."""
    folder.mkdir(exist_ok=True)
    named = {name.removeprefix("busybox-"): name for name in (*ALWAYS, *names)}
    for called, name in named.items():
        program = Path(sys.executable).resolve() if name == "python3" else require_tool(name.partition("-")[0])
        (folder / called).symlink_to(program)
    return folder


def under(shell: str) -> list[str]:
    """The words that start a shell."""
    program = str(require_tool(shell))
    return [program, "sh"] if shell == "busybox" else [program]


@asynccontextmanager
async def script_process(
    script: str, folder: Path, shell: str, programs: Sequence[str], environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The script as a process of its own; it is killed at the end if it has not ended."""
    file = folder / "drain.sh"
    file.write_text(script)
    path = programs_in(folder / "bin", programs)
    process = await asyncio.create_subprocess_exec(
        *under(shell), file, env={"PATH": str(path), **(environment or {})}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
        await process.communicate()


async def run_script(
    script: str, folder: Path, shell: str, programs: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    async with script_process(script, folder, shell, programs, environment) as process, asyncio.timeout(PATIENCE_S):
        out, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), errors.decode()
