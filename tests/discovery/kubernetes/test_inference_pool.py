from typing import Any

import msgspec
import pytest

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.objects import InferencePool, InferencePoolV1Alpha2
from epp.errors import ConfigError
from tests.fakes.kube_objects import inference_pool


def of_v1(raw: dict[str, Any]) -> PoolDefinition:
    return PoolDefinition.from_v1(msgspec.convert(raw, InferencePool))


def of_v1alpha2(raw: dict[str, Any]) -> PoolDefinition:
    return PoolDefinition.from_v1alpha2(msgspec.convert(raw, InferencePoolV1Alpha2))


def test_a_pool_of_v1_has_up_to_eight_ports_in_their_order() -> None:
    definition = of_v1(inference_pool("p", selector={"app": "x"}, ports=[8001, 8000], app_protocol="kubernetes.io/h2c"))

    assert definition.selector.render() == "app=x"
    assert definition.target_ports == (8001, 8000)
    assert definition.app_protocol == "kubernetes.io/h2c"
    assert len(of_v1(inference_pool("p", selector={"app": "x"}, ports=range(8000, 8008))).target_ports) == 8


def test_a_pool_of_v1alpha2_has_one_port_and_says_nothing_of_the_protocol() -> None:
    definition = of_v1alpha2(inference_pool("p", selector={"b": "2", "a": "1"}, ports=[8000], version="v1alpha2"))

    assert (definition.selector.render(), definition.target_ports, definition.app_protocol) == ("a=1,b=2", (8000,), None)


def test_flags_take_any_label_selector() -> None:
    definition = PoolDefinition.from_flags("app in (a,b),!canary", (8000, 8001))

    assert (definition.selector.render(), definition.target_ports) == ("app in (a,b),!canary", (8000, 8001))


def test_definitions_that_say_the_same_are_equal() -> None:
    of_flags = PoolDefinition.from_flags("b==2, a=1", [8000])

    assert of_v1(inference_pool("p", selector={"a": "1", "b": "2"}, ports=[8000])) == of_flags


@pytest.mark.parametrize("selector", [None, {}, {"matchLabels": None}, {"matchLabels": {}}])
def test_a_pool_of_v1_without_labels_is_a_fault_and_not_all_pods(selector: object) -> None:
    raw = inference_pool("p", selector={}, ports=[8000])
    raw["spec"]["selector"] = selector

    with pytest.raises(ConfigError, match=r"^InferencePool default/p: spec.selector.matchLabels: expected at least one label"):
        of_v1(raw)


@pytest.mark.parametrize("selector", [None, {}])
def test_a_pool_of_v1alpha2_without_labels_is_a_fault_and_not_all_pods(selector: object) -> None:
    raw = inference_pool("p", selector={}, ports=[8000], version="v1alpha2")
    raw["spec"]["selector"] = selector

    with pytest.raises(ConfigError, match=r"^InferencePool default/p: spec.selector: expected at least one label"):
        of_v1alpha2(raw)


@pytest.mark.parametrize(
    ("ports", "found"),
    [
        ([], "none"),
        ([0], "0"),
        ([8000, 65536], "8000, 65536"),
        ([8000, 8000], "8000, 8000"),
        (list(range(1, 11)), "1, 2, 3, 4, 5, 6, 7, 8, 9, …"),
    ],
)
def test_ports_that_no_pool_can_have_are_a_fault(ports: list[int], found: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_v1(inference_pool("p", selector={"app": "x"}, ports=ports))

    expected = f"spec.targetPorts: expected 1 to 8 different ports from 1 to 65535, found {found}"
    assert raised.value.problems == (f"InferencePool default/p: {expected}",)


def test_a_pool_with_no_spec_tells_both_faults() -> None:
    metadata = {"name": "p", "uid": "u"}

    with pytest.raises(ConfigError) as raised:
        of_v1({"metadata": metadata})
    assert [sentence.split(": ")[1] for sentence in raised.value.problems] == ["spec.selector.matchLabels", "spec.targetPorts"]
    with pytest.raises(ConfigError) as raised:
        of_v1alpha2({"metadata": metadata, "spec": {"targetPortNumber": None}})
    assert [sentence.split(": ")[1] for sentence in raised.value.problems] == ["spec.selector", "spec.targetPortNumber"]


def test_labels_that_the_api_server_would_not_take_in_a_selector_are_a_fault() -> None:
    with pytest.raises(ConfigError, match=r'expected a label.s value .*, found "a b"'):
        of_v1(inference_pool("p", selector={"app": "a b"}, ports=[8000]))


def test_a_flag_that_selects_everything_is_a_fault() -> None:
    with pytest.raises(
        ConfigError, match=r"^--endpoint-selector: expected at least one condition such as app=vllm, found none$"
    ):
        PoolDefinition.from_flags(" ", (8000,))


def test_faults_of_both_flags_are_told() -> None:
    with pytest.raises(ConfigError) as raised:
        PoolDefinition.from_flags("app=", (0,))
    assert len(raised.value.problems) == 1

    with pytest.raises(ConfigError) as raised:
        PoolDefinition.from_flags("app in a", ())
    assert [sentence.split(":")[0] for sentence in raised.value.problems] == ["--endpoint-selector", "--endpoint-target-ports"]
