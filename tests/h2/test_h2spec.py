"""h2spec, the conformance tests of others, against a running `epp serve`."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epp.demo.child import Child
from tests.patience import PATIENCE_S
from tests.tools import require_go_tool

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
LISTENING = re.compile(r"listening grpc=\S+:(\d+) ")
SUMMARY = re.compile(r"^(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", re.MULTILINE)
SECTIONS = ("generic", "http2", "hpack")
ALL_TESTS = 145
ANSWER_S = 30
"""How long h2spec waits for an answer."""


@pytest.fixture
async def epp(tmp_path: Path) -> AsyncIterator[Child]:
    child = Child("epp serve", log_file=tmp_path / "epp.log")
    yield child
    await child.terminate(10)
    await child.gone()


@pytest.mark.timeout(900)  # the first run builds h2spec
@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
async def test_every_case_of_h2spec_passes(epp: Child, secure: bool) -> None:
    h2spec = require_go_tool("h2spec", H2SPEC)
    ports = [word for flag in ("--grpc-port", "--grpc-health-port", "--metrics-port") for word in (flag, "0")]
    await epp.start([
        *("serve", "--endpoint", "127.0.0.1:1", "--host", "127.0.0.1", *ports, "--transport", "socket"),
        *("--drain-timeout", "0s", "--log-level", "warning", f"--secure-serving={str(secure).lower()}"),
    ])  # fmt: skip
    port = (await epp.until_line(LISTENING, PATIENCE_S))[1]

    said = await run(h2spec, *SECTIONS, "-h", "127.0.0.1", "-p", port, "-o", str(ANSWER_S), *(["-t", "-k"] if secure else []))

    summary = SUMMARY.search(said)
    assert summary is not None, said
    assert [int(number) for number in summary.groups()] == [ALL_TESTS, ALL_TESTS, 0, 0], failures(said)
    epp.check_alive()
    # h2spec takes a closed connection for an answer, so a server that breaks down passes, too.
    assert not re.search(r"Traceback|Fatal error|[Ee]xception", epp.log_text()), epp.log_tail()


async def run(program: Path, *arguments: str) -> str:
    """What a program writes; it is killed when it does not end."""
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(300):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode(errors="replace")


def failures(said: str) -> str:
    """The cases that did not pass, with what h2spec says of them."""
    return said[said.rfind("Failures:") :] if "Failures:" in said else said[-2000:]
