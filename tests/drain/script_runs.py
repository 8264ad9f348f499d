"""Runs the printed script as an image would: under one shell, with exactly the programs that the image has."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.tools import require_tool

SHELLS = ("dash", "bash", "busybox")
ALWAYS = ("head", "tr", "sleep", "timeout", "cat", "sh")
"""Of coreutils and the shell itself: in every image that has a shell."""


def programs_in(folder: Path, names: Sequence[str]) -> Path:
    """A folder for the PATH with these programs alone; `busybox-wget` is busybox's wget under its own name."""
    folder.mkdir(exist_ok=True)
    for name in (*ALWAYS, *names):
        program = Path(sys.executable).resolve() if name == "python3" else require_tool(name.partition("-")[0])
        (folder / name.removeprefix("busybox-")).symlink_to(program)
    return folder


def under(shell: str) -> list[str]:
    """The words that start a shell."""
    program = str(require_tool(shell))
    return [program, "sh"] if shell == "busybox" else [program]


@asynccontextmanager
async def script_process(
    script: str, folder: Path, shell: str, programs: Sequence[str], **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The script as a process of its own; it is killed at the end if it has not ended."""
    file = folder / "drain.sh"
    file.write_text(script)
    path = programs_in(folder / "bin", programs)
    process = await asyncio.create_subprocess_exec(
        *under(shell), file, env={"PATH": str(path), **environment}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
        await process.communicate()


async def run_script(
    script: str, folder: Path, shell: str, programs: Sequence[str], **environment: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    async with script_process(script, folder, shell, programs, **environment) as process, asyncio.timeout(PATIENCE_S):
        out, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), errors.decode()
