"""The hook of each manifest runs as it stands there, with the programs that the image has and no other, against a server of
that engine: it ends when the last request has, and not before."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from aiohttp import web

from epp.drain.shutdown import ENGINES, EngineShutdown
from tests.deploy.model_servers import EPP_URL
from tests.deploy.test_model_servers import script
from tests.sim.process import PATIENCE_S, SimProcess, sim_process
from tests.tools import require_tool

pytestmark = pytest.mark.flow

ESSENTIAL = ("cat", "date", "grep", "head", "kill", "mkdir", "mktemp", "rm", "sed", "sleep", "timeout", "tr", "wc")
"""Every image has these: coreutils, grep and sed are part of Debian's and Ubuntu's smallest."""
SHELLS = ("dash", "busybox")
DECODE_TOKENS_PER_S = 20
ANSWER_TOKENS = 240
"""12 s: longer than the minimum wait, and than LMDeploy goes without renewing its gauges."""
HOOK_S = 150.0
NOTICE_S = 1.0
"""For this process to see the end of an answer that a hook has seen already; less than is left of one that it has not."""


class FakePicker:
    """The admin port of a picker that knows one server; it tells the count of those whose server does not tell its load.

    Attributes:
        called: Path of each call.
    """

    def __init__(self) -> None:
        self.called: list[str] = []
        self.in_flight_requests = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.called.append(f"{request.method} {request.path}")
        count = self.in_flight_requests
        body = {"endpoint": request.match_info["endpoint"], "state": "draining", "in_flight_requests": count, "peers": {}}
        return web.json_response(body, status=202 if count and request.path.endswith("/drained") else 200)

    async def start(self) -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_route("*", "/api/v1/endpoints/{endpoint}/{call}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return runner, f"http://{host}:{port}"


def folder_of_programs(folder: Path, engine: EngineShutdown, shell: str) -> Path:
    """A folder with what the image of the engine has, as far as this machine has it, too; `sh` is `shell`."""
    folder.mkdir()
    for name in (*ESSENTIAL, *engine.tools):
        # Not what the PATH has for Python, which may be a script that looks for more.
        found = os.path.realpath(sys.executable) if name == "python3" else shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    (folder / "sh").symlink_to(require_tool(shell))
    return folder


def here(engine: EngineShutdown, sim: SimProcess, picker_url: str) -> str:
    """The script of the manifest, with addresses of this machine in place of those in a pod."""
    text = script(engine)
    if engine.metrics_port is not None:
        text = replaced(text, f"127.0.0.1:{engine.metrics_port}", sim.lines[1].removeprefix("metrics on http://"))
    own = sim.url.removeprefix("http://")
    text = replaced(text, f"127.0.0.1:{engine.port}", own)
    text = replaced(text, f"PORT='{engine.port}'", f"PORT='{own.rpartition(':')[2]}'")
    text = replaced(text, "LOG_FILE=''", "LOG_FILE='/proc/self/fd/1'")
    return replaced(text, EPP_URL, picker_url)


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


async def hook(file: Path, programs: Path, log: Path) -> int:
    """The exit code of the hook, run as the kubelet does but for the folder of `sh`."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(programs / "sh", file),
            env={"PATH": str(programs), "POD_IP": "127.0.0.1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        return await asyncio.wait_for(process.wait(), HOOK_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer_of(sim: SimProcess, started: asyncio.Event) -> bytes:
    """The last of a streamed answer; `started` is set when the first of it is there."""
    body = {"model": "sim-model", "prompt": "x", "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "stream": True}
    last = b""
    async with sim.client.post(sim.url + "/v1/completions", json=body) as response:
        async for part in response.content.iter_any():
            started.set()
            last = (last + part)[-100:]
    return last


async def drained(engine: EngineShutdown, folder: Path) -> None:
    """Run the hook in every shell while one request runs, and see that the request has ended first."""
    folder.mkdir()
    flags = ("--engine", engine.name, "--port", "0", "--decode-rate", str(DECODE_TOKENS_PER_S))
    own_port = () if engine.metrics_port is None else ("--metrics-port", "0")
    picker = FakePicker()
    runner, picker_url = await picker.start()
    try:
        async with sim_process(*flags, *own_port, lines=1 + bool(own_port)) as sim:
            file = folder / "drain.sh"
            file.write_text(here(engine, sim, picker_url))
            told_by_server = engine.has_load and not engine.page_freezes
            picker.in_flight_requests = 0 if told_by_server else 1
            started = asyncio.Event()
            request = asyncio.create_task(answer_of(sim, started))
            await asyncio.wait_for(started.wait(), PATIENCE_S)

            async def run(shell: str) -> None:
                log = folder / f"{shell}.log"
                code = await hook(file, folder_of_programs(folder / shell, engine, shell), log)
                ended, _ = await asyncio.wait({request}, timeout=NOTICE_S)
                told = log.read_text(errors="replace")
                assert code == 0, (engine.name, shell, told)
                assert ended, (engine.name, shell, told)
                assert "epp drain: done after " in told, (engine.name, shell, told)

            hooks = asyncio.gather(*(run(shell) for shell in SHELLS))
            try:
                assert b"[DONE]" in await asyncio.wait_for(asyncio.shield(request), PATIENCE_S)
                picker.in_flight_requests = 0
                await hooks
            finally:
                hooks.cancel()
                request.cancel()
        endpoint = f"127.0.0.1:{sim.url.rpartition(':')[2]}"
        assert any(call == f"POST /api/v1/endpoints/{endpoint}/drain" for call in picker.called), picker.called
        assert any(call == f"GET /api/v1/endpoints/{endpoint}/drained" for call in picker.called), picker.called
    finally:
        await runner.cleanup()


async def test_every_hook_waits_for_the_last_request_and_ends_with_0(tmp_path: Path) -> None:
    """All side by side, since most of it is waiting."""
    for shell in SHELLS:
        require_tool(shell)

    async with asyncio.TaskGroup() as group:
        for engine in ENGINES.values():
            group.create_task(drained(engine, tmp_path / engine.name))
