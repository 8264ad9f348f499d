"""From the command line to an answer: `epp serve` with its defaults behind an Envoy that `epp envoy-config` configured."""

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode, HostPort
from epp.envoy.process import EnvoyProcess
from tests.fakes.upstream import Upstream
from tests.flows.epp_process import ROOT, START_S
from tests.flows.harness import EppProcess, start_upstreams, write_endpoints
from tests.tools import require_tool

pytestmark = pytest.mark.asyncio(loop_scope="module")

FREE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[EppProcess, list[Upstream]]]:
    """`epp serve --endpoints-file …`, TLS with its own certificate as by default."""
    file = tmp_path_factory.mktemp("endpoints") / "endpoints.json"
    async with start_upstreams(2) as upstreams:
        write_endpoints(file, upstreams)
        async with EppProcess("--endpoints-file", str(file), tls=True) as epp:
            yield epp, upstreams
            assert epp.log_records("error") == []


async def run(*command: str | Path, stdin: bytes | None = None) -> str:
    """Standard output of a command that must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(START_S):
            output, errors = await process.communicate(stdin)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def print_configuration(epp: EppProcess, *arguments: str) -> str:
    """What `epp envoy-config` prints."""
    return await run(sys.executable, "-m", "epp", "envoy-config", "--epp", str(epp.grpc), *FREE, *arguments)


def patient(configuration: str) -> str:
    """Envoy starts with the first list of endpoints, however long a busy machine takes for it."""
    assert configuration.count("initial_fetch_timeout: 2s") == 1
    return configuration.replace("initial_fetch_timeout: 2s", f"initial_fetch_timeout: {START_S:g}s")


async def curl(to: HostPort, *arguments: str, stdin: bytes | None = None) -> str:
    return await run(require_tool("curl"), "--silent", "--show-error", "--fail", "--max-time", "60", *arguments,
                     f"http://{to}/v1/chat/completions", stdin=stdin)  # fmt: skip


@pytest.mark.parametrize("mode", list(BodyMode))
async def test_curl_gets_its_answers_in_every_mode(served: tuple[EppProcess, list[Upstream]], mode: BodyMode) -> None:
    epp, upstreams = served
    modes = ("--request-body-mode", mode.value, "--response-body-mode", mode.value)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"hello " * 400_000 + b'"}]}'
    async with EnvoyProcess(patient(await print_configuration(epp, *modes)), start_timeout_s=START_S) as envoy:
        got = await curl(envoy.listener())
        small = await curl(envoy.listener(), "--json", '{"model": "m", "prompt": "x"}')
        large = await curl(envoy.listener(), "--json", "@-", stdin=body)
        chunked = await curl(envoy.listener(), "--json", "@-", "--header", "transfer-encoding: chunked", stdin=body)

    names = {upstream.name for upstream in upstreams}
    assert {msgspec.json.decode(answer)["server"] for answer in (got, small, large, chunked)} <= names
    assert msgspec.json.decode(got)["method"] == "GET"
    for answer in (large, chunked):
        assert msgspec.json.decode(answer)["body_sha256"] == hashlib.sha256(body).hexdigest()
    await epp.wait_idle()


async def test_the_default_configuration_reaches_the_default_picker(served: tuple[EppProcess, list[Upstream]]) -> None:
    """Nothing but the ports is chosen here: TLS on both sides, full duplex."""
    epp, _ = served
    async with EnvoyProcess(patient(await print_configuration(epp)), start_timeout_s=START_S) as envoy:
        answer = await curl(envoy.listener(), "--json", '{"model": "m", "prompt": "x"}')

    assert msgspec.json.decode(answer)["body_bytes"] == 29
    assert [record["grpc_security"] for record in epp.log_records() if record["event"] == "listening"] == ["TLS"]


async def test_a_plaintext_envoy_cannot_reach_a_picker_with_tls(served: tuple[EppProcess, list[Upstream]]) -> None:
    """Field report 30: one side with TLS, the other without; requests fail, the picker lives on."""
    epp, _ = served
    async with EnvoyProcess(await print_configuration(epp, "--epp-tls=false")) as envoy:
        answer = await run(require_tool("curl"), "--silent", "--max-time", "60", "--write-out", "%{http_code}", "--output",
                           "/dev/null", "--json", "{}", f"http://{envoy.listener()}/x")  # fmt: skip
    async with EnvoyProcess(patient(await print_configuration(epp)), start_timeout_s=START_S) as envoy:
        assert await curl(envoy.listener(), "--json", "{}")

    assert answer in ("500", "503", "504")


async def test_the_dashboard_port_tells_the_pool(served: tuple[EppProcess, list[Upstream]]) -> None:
    epp, upstreams = served
    status, text = await epp.get("/api/v1/pool")
    page = msgspec.json.decode(text)

    assert status == 200
    assert page["pool"] == {"name": "endpoints", "source": "file"}
    assert page["ready"] is True
    assert [endpoint["name"] for endpoint in page["endpoints"]] == [upstream.name for upstream in upstreams]
