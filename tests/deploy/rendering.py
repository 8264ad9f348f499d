"""What helm and kustomize make of deploy/."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.manifest import Manifest
from tests.kubernetes.programs import require_helm, require_kubectl

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart" / "inference-epp"
KUSTOMIZE = DEPLOY / "kustomize"
EXAMPLES = DEPLOY / "examples"
RELEASE = "my-pool"
NAMESPACE = "default"
LABELS = {"inferencePool": {"modelServers": {"matchLabels": {"app": "my-model-server"}}}}
"""The only values without a default."""
_RENDER_S = 110


def template(values: Mapping[str, Any], *, release: str = RELEASE) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values over the chart's own."""
    return subprocess.run(
        [require_helm(), "template", release, CHART, "--namespace", NAMESPACE, "--values", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        timeout=_RENDER_S,
        check=False,
    )


def render(*layers: Mapping[str, Any], release: str = RELEASE) -> list[Manifest]:
    """The objects of the chart; later layers of values lie over earlier ones."""
    rendered = template(merged(*layers), release=release)
    assert rendered.returncode == 0, rendered.stderr
    return documents(rendered.stdout)


def refusal(*layers: Mapping[str, Any]) -> str:
    """Why the chart refuses these values."""
    rendered = template(merged(*layers))
    assert rendered.returncode != 0, "expected helm to refuse these values"
    return rendered.stderr


def kustomize(folder: Path) -> list[Manifest]:
    """The objects of a kustomization."""
    built = subprocess.run(
        [require_kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=_RENDER_S, check=False
    )
    assert built.returncode == 0, built.stderr
    return documents(built.stdout)


def documents(text: str) -> list[Manifest]:
    """The objects in a YAML text."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings laid over one another."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result


def of_kind(objects: Iterable[Manifest], kind: str) -> Manifest:
    """The only object of that kind; of Services, the one for gateways."""
    (found,) = [each for each in objects if each["kind"] == kind and not is_of_replicas(each)]
    return found


def is_of_replicas(each: Manifest) -> bool:
    """Whether it is the Service by which the replicas find one another."""
    return bool(each["kind"] == "Service" and each["metadata"]["name"].endswith("-replicas"))


def pod_of(objects: Iterable[Manifest]) -> dict[str, Any]:
    """The specification of the picker's pods."""
    spec: dict[str, Any] = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def picker_of(objects: Iterable[Manifest]) -> dict[str, Any]:
    """The container of the picker."""
    (container,) = pod_of(objects)["containers"]
    assert container["name"] == "epp"
    return container  # type: ignore[no-any-return]


def arguments_of(objects: Iterable[Manifest]) -> Sequence[str]:
    """What the picker is started with."""
    arguments: Sequence[str] = picker_of(objects)["args"]
    return arguments
