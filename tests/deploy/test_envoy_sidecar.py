"""The Envoy of the chart, with the real one: it asks the picker beside it, and tells clients to go when its pod ends."""

import asyncio
import os
import shlex
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from epp.cli.envoy_config import command
from epp.envoy.process import EnvoyProcess, find_envoy
from tests.deploy.choices import CHOICES
from tests.deploy.rendering import CHART, arguments_of, of_kind, picker_of, pod_of, render
from tests.flows.epp_process import EppProcess
from tests.flows.harness import endpoint_arguments, start_upstreams
from tests.kubernetes.manifest import Manifest
from tests.tools import require_tool

SOCKET = "/run/epp/grpc.sock"
ADMIN_PORT = 19000


def test_the_configuration_of_the_chart_is_what_its_command_prints() -> None:
    text = (CHART / "files" / "envoy.yaml").read_text()
    (made_by,) = [line for line in text.splitlines() if line.startswith("# Made by: epp envoy-config")]
    arguments = shlex.split(made_by.removeprefix("# Made by: epp envoy-config"))

    assert CliRunner().invoke(command, arguments).stdout == text


def envoy_of(objects: list[Manifest]) -> dict[str, Any]:
    """The container of Envoy."""
    (container,) = pod_of(objects)["initContainers"]
    assert container["command"] == ["envoy"]
    return container  # type: ignore[no-any-return]


@pytest.mark.flow
def test_envoy_is_a_native_sidecar_that_shares_the_socket_with_the_picker() -> None:
    objects = render(CHOICES["standalone"])
    mounts = [
        {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for container in (envoy_of(objects), picker_of(objects))
    ]

    assert envoy_of(objects)["restartPolicy"] == "Always"
    assert mounts[0]["/run/epp"] == mounts[1]["/run/epp"]
    assert f"--grpc-socket={SOCKET}" in arguments_of(objects)


@asynccontextmanager
async def started(objects: list[Manifest], folder: Path) -> AsyncIterator[EnvoyProcess]:
    """Envoy with the configuration and the flags of the chart, on free ports, beside a picker with one model server."""
    text = of_kind([each for each in objects if each["kind"] == "ConfigMap"], "ConfigMap")["data"]["envoy.yaml"]
    config = yaml.safe_load(text.replace(SOCKET, str(folder / "grpc.sock")))
    config["static_resources"]["listeners"][0]["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": 0}
    assert config["admin"]["address"]["socket_address"]["port_value"] == ADMIN_PORT
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    for cluster in config["static_resources"]["clusters"]:
        if "eds_cluster_config" in cluster:  # it starts with the first list, however long a busy machine takes for it
            cluster["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"] = "60s"
    flags = envoy_of(objects)["args"]
    assert flags[:2] == ["--config-path", "/etc/envoy/envoy.yaml"]
    more = [flag for flag in flags[2:] if flag != "--disable-hot-restart"]
    # Longer than the hook: on a busy machine the listener would else close before the test has asked.
    more[more.index("--drain-time-s") + 1] = "600"
    program = folder / "envoy"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_envoy()))} "$@" {shlex.join(more)}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    async with (
        start_upstreams(1) as upstreams,
        EppProcess(*endpoint_arguments(upstreams), "--grpc-socket", str(folder / "grpc.sock")),
        EnvoyProcess(yaml.safe_dump(config), executable=program, start_timeout_s=60) as envoy,
    ):
        yield envoy


async def answer(session: aiohttp.ClientSession, envoy: EnvoyProcess) -> tuple[int, bool]:
    """Status of a request, and whether the answer tells the client to open a new connection."""
    async with session.post(f"http://{envoy.listener()}/v1/completions", json={"prompt": "a"}) as response:
        await response.read()
        return response.status, response.headers.get("connection", "").lower() == "close"


@pytest.mark.flow
async def test_from_the_hook_on_clients_are_told_to_go_and_are_served(tmp_path: Path) -> None:
    objects = render(CHOICES["standalone"])
    hook = envoy_of(objects)["lifecycle"]["preStop"]["exec"]["command"]
    async with started(objects, tmp_path) as envoy, aiohttp.ClientSession() as session:
        assert await answer(session, envoy) == (200, False)

        line = [word.replace(f"/{ADMIN_PORT}", f"/{envoy.admin.port}") for word in hook]
        process = await asyncio.create_subprocess_exec(
            require_tool(line[0]), *line[1:], stdout=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"]}
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)

        assert process.returncode == 0
        assert output.startswith(b"HTTP/1.1 200 ")
        assert await answer(session, envoy) == (200, True)
        assert await answer(session, envoy) == (200, True)
