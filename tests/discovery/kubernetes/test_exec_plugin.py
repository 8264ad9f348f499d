"""Programs that give a token, or do not."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from lightkube.config.models import NameValue, UserExec

from epp.discovery.kubernetes.api_errors import CredentialsError
from epp.discovery.kubernetes.exec_plugin import ExecPlugin
from tests.discovery.fakes import eventually
from tests.fakes.clock import FakeClock

FOR_EVER = "exec sleep 1000"


class Plugin:
    """A program, and requests that need its token."""

    def __init__(self, folder: Path, script: str, *, max_s: float = 60.0, output_max_bytes: int = 1000) -> None:
        self._folder = folder
        self.path = folder / "plugin"
        self.path.write_text(f"#!/bin/sh\necho $$ >> {folder}/pids\n{script}\n")
        self.path.chmod(0o755)
        self.clock = FakeClock()
        entry = UserExec(
            apiVersion="client.authentication.k8s.io/v1",
            command=str(self.path),
            args=["--secret"],
            env=[NameValue(name="NUMBERS", value=f"{folder}/pids")],
        )
        self.asking = ExecPlugin(entry, self.clock, max_s=max_s, output_max_bytes=output_max_bytes)

    @property
    def pids(self) -> list[int]:
        """The process of each time that it ran."""
        path = self._folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    async def request(self, *statuses: int) -> list[str]:
        """The headers of one request that is answered so, once and then again."""
        sent = []
        flow = self.asking.async_auth_flow(httpx2.Request("GET", "http://h"))
        request = await anext(flow)
        for status in statuses:
            sent.append(request.headers["authorization"])
            try:
                request = await flow.asend(httpx2.Response(status))
            except StopAsyncIteration:
                return sent
        await flow.aclose()
        return sent

    async def fault(self) -> str:
        """Why there is no token."""
        with pytest.raises(CredentialsError) as caught:
            await self.request(200)
        assert "secret" not in str(caught.value)
        return str(caught.value).replace(str(self._folder), "DIR")


def answer(token: str = "t$(wc -l < $NUMBERS)", **rest: str) -> str:
    """A script that gives a token, by default a new one each time."""
    text = json.dumps({"kind": "ExecCredential", "status": {"token": token, **rest}})
    return f"cat << END\n{text}\nEND"


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_a_token_is_asked_for_once_and_again_after_a_401(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, answer())
    assert await plugin.request(200) == ["Bearer t1"]
    assert await plugin.request(500) == ["Bearer t1"]
    assert await plugin.request(401, 401) == ["Bearer t1", "Bearer t2"]
    assert await plugin.request(200) == ["Bearer t2"]


async def test_a_token_is_kept_until_it_expires(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, answer(expirationTimestamp="2023-11-14T22:31:00Z"))  # 1,700,001,060 s
    for _ in range(2):
        assert await plugin.request(200) == ["Bearer t1"]
    plugin.clock.advance(59.0)
    assert await plugin.request(200) == ["Bearer t1"]
    plugin.clock.advance(1.0)
    assert await plugin.request(200) == ["Bearer t2"]


async def test_requests_that_come_together_ask_once(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, answer())
    assert await asyncio.gather(*(plugin.request(200) for _ in range(5))) == [["Bearer t1"]] * 5
    flows = [plugin.asking.async_auth_flow(httpx2.Request("GET", "http://h")) for _ in range(5)]
    assert {(await anext(flow)).headers["authorization"] for flow in flows} == {"Bearer t1"}
    again = await asyncio.gather(*(flow.asend(httpx2.Response(401)) for flow in flows))
    assert {request.headers["authorization"] for request in again} == {"Bearer t2"}
    await asyncio.gather(*(flow.aclose() for flow in flows))


async def test_requests_that_waited_for_a_failure_do_not_ask_again(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "exit 1")
    faults = await asyncio.gather(*(plugin.fault() for _ in range(5)))
    assert len(set(faults)) == 1
    assert len(plugin.pids) == 1
    await plugin.fault()
    assert len(plugin.pids) == 2


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo secret >&2; exit 3", "expected exit code 0, found exit code 3"),
        ("kill -9 $$", "expected exit code 0, found an end by signal 9"),
        ("echo secret", "expected an ExecCredential with status.token, found something else"),
        ("echo '[\"secret\"]'", "expected an ExecCredential with status.token, found something else"),
        ('echo \'{"status": {"token": ["secret"]}}\'', "expected an ExecCredential with status.token, found something else"),
        ("echo '{\"status\": {}}'", "expected an ExecCredential with status.token, found none"),
        (
            'echo \'{"status": {"clientCertificateData": "secret"}}\'',
            "expected an ExecCredential with status.token, found a client certificate, which is not supported",
        ),
        (
            answer("secret\nsecret"),
            "expected a token of printable ASCII characters without spaces, found something else",
        ),
        (answer("x", expirationTimestamp="secret"), "expected an ExecCredential with status.token, found something else"),
        ("cat /dev/zero", "expected at most 1000 bytes, found more"),
    ],
)
async def test_what_is_no_token_is_told_without_what_the_program_said(tmp_path: Path, script: str, fault: str) -> None:
    plugin = Plugin(tmp_path, script)
    assert await plugin.fault() == f'credential plugin "DIR/plugin": {fault}'
    assert not any(map(is_alive, plugin.pids))


async def test_a_program_that_is_missing_is_told_by_its_name(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "")
    plugin.path.unlink()
    assert await plugin.fault() == (
        'credential plugin "DIR/plugin": expected a program that can be run, found: No such file or directory'
    )
    plugin.path.write_text("")
    assert (await plugin.fault()).endswith("found: Permission denied")


async def test_a_program_that_reads_gets_nothing(tmp_path: Path) -> None:
    assert await Plugin(tmp_path, f"cat > /dev/null; {answer()}").request(200) == ["Bearer t1"]


@pytest.mark.parametrize(
    "script", [FOR_EVER, f"(echo $$; sh -c 'echo $$ >> $NUMBERS; {FOR_EVER}') & wait", "sleep 1000 & exit 0"]
)
async def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path, script: str) -> None:
    for max_s in (0.2, 2.0, 20.0):  # a busy machine may not even have started it after so short a time
        plugin = Plugin(tmp_path, script, max_s=max_s)
        assert await plugin.fault() == f'credential plugin "DIR/plugin": expected an answer within {max_s:g} s, found none'
        if plugin.pids:
            break
    assert plugin.pids
    await eventually(lambda: not any(map(is_alive, plugin.pids)))


async def test_a_program_that_nobody_waits_for_any_more_is_killed(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, FOR_EVER)
    requests = [asyncio.create_task(plugin.request(200)) for _ in range(3)]
    await eventually(lambda: plugin.pids)
    for request in requests:
        request.cancel()
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*requests, return_exceptions=True))
    assert len(plugin.pids) == 1
    assert not is_alive(plugin.pids[0])
