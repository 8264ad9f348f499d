"""A program on a leash, as real processes."""

import asyncio
import os
import subprocess
import sys

import pytest

from epp.demo.leash import leashed
from tests.demo.processes import all_end, is_running

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
PARENT = f"""
import subprocess, sys, time
from epp.demo.leash import leashed
child = subprocess.Popen(leashed({SLEEPER!r}), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_program_gets_its_arguments_and_its_exit_code_comes_back() -> None:
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "$c"]

    done = subprocess.run(leashed(program), capture_output=True, text=True, timeout=90, check=False)

    assert (done.returncode, done.stdout) == (7, "['a b', '$c']\n")


def test_the_program_has_a_session_of_its_own_so_that_a_terminal_signals_the_parent_only() -> None:
    program = [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"]

    assert subprocess.run(leashed(program), capture_output=True, text=True, timeout=90, check=True).stdout == "True\n"


def test_a_program_whose_parent_is_already_gone_is_not_started() -> None:
    command = leashed([sys.executable, "-c", "print('started')"])
    command[command.index(str(os.getpid()))] = "1"

    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert "not started, process 1 has ended" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="expected Linux: only its kernel tells children that their parent died")
async def test_the_program_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    try:
        assert parent.stdout is not None
        async with asyncio.timeout(90):
            child_pid = int(await parent.stdout.readline())
        assert is_running(child_pid)
    finally:
        parent.kill()
        await parent.wait()

    await all_end([child_pid])
