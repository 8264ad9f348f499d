"""What deploy/README.md and deploy/SECURITY.md say holds."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import CHART, DEPLOY, LABELS, merged, of_kind, picker_of, render

DOCUMENTS = [DEPLOY / "README.md", DEPLOY / "SECURITY.md"]
_LINK = re.compile(r"\]\(([^)#]+)\)")


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first column has that name."""
    rows: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == first:
            rows = [cells]
        elif rows and cells:
            rows.append(cells)
        elif rows:
            return rows[2:]
    return rows[2:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = _LINK.findall(document.read_text())

    assert links
    for link in links:
        assert (document.parent / link).exists(), link


@pytest.mark.flow
def test_the_table_of_rights_is_the_role() -> None:
    names = {"all": None, "the pool's": ["my-pool"], "the picker's": ["epp-my-pool"]}
    written = [
        {
            "apiGroups": ["" if group == "core" else group for group in groups.split(", ")],
            "resources": resources.split(", "),
            "resourceNames": names[named],
            "verbs": verbs.split(", "),
        }
        for groups, resources, named, verbs, _ in table((DEPLOY / "SECURITY.md").read_text(), "API group")
    ]

    assert written == [{"resourceNames": None, **rule} for rule in of_kind(render(LABELS), "Role")["rules"]]


@pytest.mark.flow
def test_the_table_of_ports_is_what_the_pods_have() -> None:
    objects = render(merged(LABELS, {"standaloneEnvoy": {"enabled": True}}))
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    there = {port["containerPort"] for container in [*pod["initContainers"], *pod["containers"]] for port in container["ports"]}

    assert {int(row[0]) for row in table((DEPLOY / "SECURITY.md").read_text(), "port")} == there


@pytest.mark.flow
def test_a_configuration_can_be_kept_in_a_secret_as_the_document_says() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "SECURITY.md").read_text(), re.DOTALL)
    container = picker_of(render(LABELS, yaml.safe_load(example)))

    assert "--config-file=/etc/epp/secret/config.yaml" in container["args"]
    assert container["volumeMounts"] == [{"name": "secret-config", "mountPath": "/etc/epp/secret", "readOnly": True}]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_value_that_is_named_exists(document: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.findall(r"`((?:inferenceExtension|networkPolicy|standaloneEnvoy|provider)\.[A-Za-z.]+)", document.read_text())

    assert named
    for path in named:
        here: Any = values
        for key in path.split("."):
            assert key in here, path
            here = here[key]


def test_the_times_that_are_named_are_the_defaults() -> None:
    drain = yaml.safe_load((CHART / "values.yaml").read_text())["inferenceExtension"]["drain"]
    text = (DEPLOY / "README.md").read_text()

    for key, value in drain.items():
        assert f"`drain.{key}` ({value})" in text
