"""The example configurations are valid, and the one that spells out the defaults does so."""

from pathlib import Path

import pytest

from epp.config.document_reader import read_document
from epp.config.loader import load_settings
from epp.config.settings import declared
from epp.config.yaml_tree import YamlMap, read_yaml

EXAMPLES = Path(__file__).parents[2] / "config" / "epp"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_an_example_loads(file: Path) -> None:
    load_settings({}, read_document(file.read_text(), file.name), needs_source=False)


def test_default_yaml_says_what_holds_without_it() -> None:
    values = read_document((EXAMPLES / "default.yaml").read_text(), "default.yaml").values
    defaults = {(group, attribute): default for group, attribute, setting, default in declared() if setting.key}
    assert {key: defaults[key] for key in values} == values


def test_default_yaml_has_every_key_that_is_declared() -> None:
    root = read_yaml((EXAMPLES / "default.yaml").read_text(), "default.yaml")
    assert isinstance(root, YamlMap)
    sections = {name: node for name, node in root.entries.items() if isinstance(node, YamlMap)}
    written = {f"{name}.{key}" for name, node in sections.items() for key in node.entries}
    assert written == {setting.key for _, _, setting, _ in declared() if setting.key}
