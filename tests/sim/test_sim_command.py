"""The command `epp sim`."""

import socket
from typing import Any

import pytest
from click.testing import CliRunner

from epp.cli.sim import command
from epp.sim.config import SimConfig
from tests.sim.process import sim_process


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments))


def test_every_option_has_help_and_belongs_to_a_setting() -> None:
    settings = set(SimConfig.__dataclass_fields__)

    assert {parameter.name for parameter in command.params} == settings
    assert all(getattr(parameter, "help", None) for parameter in command.params)


def test_the_defaults_are_those_of_the_settings() -> None:
    context = command.make_context("sim", [])

    assert SimConfig(**context.params) == SimConfig()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "gpt"), "'gpt' is not one of 'vllm'"),
        (("--slots", "0"), "--slots: expected a number of at least 1, found 0"),
        (("--startup-delay", "soon"), "expected a duration such as 50ms, 2s or 1m, found 'soon'"),
        (("--port", "99999"), "expected a port from 0 to 65535, found '99999'"),
        (("--engine", "tgi", "--sigterm-watchdog", "1s"), "--sigterm-watchdog: expected engine sglang, found tgi"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(arguments: tuple[str, ...], sentence: str) -> None:
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert sentence in result.output


def test_a_port_in_use_ends_with_1_and_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("--port", str(port))

    assert result.exit_code == 1
    assert result.output.startswith(f"epp sim: 127.0.0.1:{port}: ")
    assert len(result.output.splitlines()) == 1


async def test_the_address_is_printed_and_options_have_effect() -> None:
    arguments = ("--name", "alice", "--metrics-port", "0", "--metrics-path", "/m", "--kv-blocks", "77", "--old-metric-names")
    async with sim_process(*arguments, lines=2) as sim:
        listening, metrics = sim.lines
        async with sim.client.get(sim.url + "/version") as response:
            assert response.headers["x-sim-name"] == "alice"
        async with sim.client.get(metrics.removeprefix("metrics on ") + "/m") as response:
            page = await response.text()

        assert listening.startswith("listening on http://127.0.0.1:")
        assert 'num_gpu_blocks="77"' in page
        assert "vllm:gpu_cache_usage_perc" in page
        sim.terminate()
        assert await sim.exit_code() == 0


async def test_answers_are_the_same_in_another_process_with_the_same_seed() -> None:
    """Whatever Python's own hash seed is."""
    said = []
    for hash_seed in ("1", "2"):
        async with (
            sim_process("--seed", "42", "--decode-rate", "5000", environment={"PYTHONHASHSEED": hash_seed}) as sim,
            sim.client.post(sim.url + "/v1/completions", json={"prompt": "once"}) as response,
        ):
            body = await response.json()
            said.append((body["id"], body["choices"], body["usage"]))

    assert said[0] == said[1]
