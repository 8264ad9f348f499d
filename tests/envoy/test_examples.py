"""config/envoy: each example is what `epp envoy-config` prints, and a real Envoy accepts it."""

import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from epp.cli.envoy_config import command
from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions
from epp.envoy.typed import as_dict
from tests.envoy.test_config import validate

EXAMPLES = sorted((Path(__file__).parents[2] / "config" / "envoy").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert {example.stem for example in EXAMPLES} >= {"standalone", "filter", "fail-open", "pick-only"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_what_its_command_prints(example: Path) -> None:
    text = example.read_text()
    (made_by,) = [line for line in text.splitlines() if line.startswith("# Made by: epp envoy-config")]
    arguments = shlex.split(made_by.removeprefix("# Made by: epp envoy-config"))

    assert CliRunner().invoke(command, arguments).stdout == text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
async def test_a_real_envoy_accepts_an_example(example: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(example.read_text())
    if "static_resources" not in content:  # the filter alone, put where it belongs
        whole = as_dict(bootstrap(EnvoyOptions()))
        chain = whole["static_resources"]["listeners"][0]["filter_chains"][0]
        chain["filters"][0]["typed_config"]["http_filters"][0] = content
        content = whole
    code, output = await validate(tmp_path, yaml.safe_dump(content))

    assert code == 0, output
