"""The kustomizations: they can be built, and say the same as the chart."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import (
    CHART,
    KUSTOMIZE,
    LABELS,
    arguments_of,
    kustomize,
    merged,
    of_kind,
    pod_of,
    render,
)
from tests.kubernetes.manifest import Manifest

OVERLAYS = sorted((KUSTOMIZE / "overlays").iterdir())
SELECTOR = {
    "inferenceExtension": {"endpointsServer": {"createInferencePool": False, "endpointSelector": "app=my-model-server"}}
}
AS_IN_THE_CHART = {
    "gateway": merged(LABELS, {"experimentalHttpRoute": {"enabled": True}}),
    "selector": SELECTOR,
    "standalone-envoy": merged(SELECTOR, {"standaloneEnvoy": {"enabled": True}}),
}
"""Overlay → the values that make the same."""
_OF_HELM_ALONE = ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")


def comparable(objects: list[Manifest], *, without_config: bool = True) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, without what only one of the two tools writes."""
    found = {}
    for original in objects:
        each = copy.deepcopy(original)
        for label in _OF_HELM_ALONE:
            each["metadata"].get("labels", {}).pop(label, None)
        # What belongs to the pool and the Gateway has no labels in the overlays, and no names made of hashes in the chart.
        if each["kind"] in ("InferencePool", "HTTPRoute"):
            each["metadata"].pop("labels", None)
        if each["kind"] == "ConfigMap" and without_config:
            continue
        if each["kind"] == "Deployment":
            annotations = each["spec"]["template"]["metadata"]["annotations"]
            each["spec"]["template"]["metadata"]["annotations"] = {
                key: value for key, value in annotations.items() if not key.startswith("checksum/")
            }
            for volume in each["spec"]["template"]["spec"].get("volumes", []):
                if "configMap" in volume:
                    volume["configMap"]["name"] = "…"
        found[each["kind"], each["metadata"]["name"]] = each
    return found


def test_there_is_an_overlay_for_each_way() -> None:
    assert {overlay.name for overlay in OVERLAYS} == AS_IN_THE_CHART.keys()


@pytest.mark.flow
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
def test_an_overlay_is_what_the_chart_makes_of_the_same_choice(overlay: Path) -> None:
    assert comparable(kustomize(overlay)) == comparable(render(AS_IN_THE_CHART[overlay.name]))


@pytest.mark.flow
def test_the_base_is_what_the_chart_makes_of_its_defaults_without_the_pool() -> None:
    chart = comparable(render(LABELS))
    del chart["InferencePool", "my-pool"]
    for each in chart.values():
        each["metadata"].pop("namespace")
        for subject in each.get("subjects", []):
            subject.pop("namespace")

    assert comparable(kustomize(KUSTOMIZE / "base")) == chart


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda overlay: overlay.name)
def test_every_object_of_an_overlay_is_in_its_namespace(overlay: Path) -> None:
    objects = kustomize(overlay)

    assert {each["metadata"]["namespace"] for each in objects} == {"default"}
    assert [subject["namespace"] for subject in of_kind(objects, "RoleBinding")["subjects"]] == ["default"]


def test_the_envoy_of_the_overlay_is_that_of_the_chart() -> None:
    text = (KUSTOMIZE / "components" / "envoy" / "envoy.yaml").read_text()
    objects = kustomize(KUSTOMIZE / "overlays" / "standalone-envoy")
    config = of_kind(objects, "ConfigMap")
    (volume,) = [each for each in pod_of(objects)["volumes"] if each["name"] == "envoy"]

    assert text == (CHART / "files" / "envoy.yaml").read_text()
    assert config["data"] == {"envoy.yaml": text}
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert "--grpc-socket=/run/epp/grpc.sock" in arguments_of(objects)


def test_the_image_can_be_set_in_one_place() -> None:
    for overlay in OVERLAYS:
        kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        assert [image["name"] for image in kustomization["images"]] == ["inference-epp"]
