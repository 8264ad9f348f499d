"""Engines that users describe: the parameters of core-metrics-extractor."""

from typing import Any

import pytest
import yaml

from epp.errors import ConfigError
from epp.pool.metrics import EndpointMetrics, LoraState
from epp.scrape.engines.custom import custom_engine, extractor_parameters
from epp.scrape.engines.page import Source
from tests.scrape.engines.reading import read

PARAMETERS = yaml.safe_load("""
engineLabelKey: llm-d.ai/engine-type
defaultEngine: vllm
engineConfigs:
- name: my-engine
  queuedRequestsSpec: 'my_queue{state="waiting"}'
  runningRequestsSpec: 'my_queue{state="running"}'
  kvUsageSpec: my_kv_usage
  loraSpec: ""
  cacheInfoSpec: my_cache_info
  cacheBlockSizeLabelName: page_size
  cacheNumBlocksLabelName: num_pages
""")
PAGE = """my_queue{state="waiting",engine="0"} 2
my_queue{state="waiting",engine="1"} 3
my_queue{state="running",engine="0"} 7
my_queue{state="paused",engine="0"} 90
my_kv_usage 0.25
my_cache_info{page_size="64",num_pages="1000"} 1
"""


def one(**parameters: Any) -> EndpointMetrics:
    return read(custom_engine({"name": "x", **parameters}), PAGE)


def problems(parameters: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        extractor_parameters(parameters, "plugins[2].parameters")
    return caught.value.problems


def test_the_parameters_of_the_reference_picker_work() -> None:
    parameters = extractor_parameters(PARAMETERS)

    assert (parameters.engine_label_key, parameters.default_engine) == ("llm-d.ai/engine-type", "vllm")
    (engine,) = parameters.engines
    assert (engine.name, engine.sources) == ("my-engine", (Source(path="/metrics"),))
    assert read(engine, PAGE) == EndpointMetrics(
        waiting_requests=5, running_requests=7, kv_cache_usage_ratio=0.25, kv_cache_blocks=1000, kv_cache_block_tokens=64
    )


def test_nothing_is_needed() -> None:
    parameters = extractor_parameters({})

    assert (parameters.engine_label_key, parameters.default_engine, parameters.engines) == (None, None, ())


def test_a_spec_that_is_missing_or_empty_switches_its_quantity_off() -> None:
    assert one(queuedRequestsSpec="my_queue{state=waiting}", runningRequestsSpec="", kvUsageSpec=None) == EndpointMetrics(
        waiting_requests=5
    )


def test_an_engine_without_any_spec_is_never_read() -> None:
    assert custom_engine({"name": "quiet", "kvUsageSpec": ""}).sources == ()


def test_all_conditions_of_a_selector_count() -> None:
    assert one(queuedRequestsSpec='my_queue{state=~"waiting|running",engine!="1"}').waiting_requests == 9
    assert one(queuedRequestsSpec='my_queue{state!~"paused|running"}').waiting_requests == 5


def test_block_size_and_number_may_be_metrics_of_their_own() -> None:
    engine = custom_engine({"name": "x", "cacheBlockSizeSpec": "my_page_size", "cacheNumBlocksSpec": 'my_blocks{kind="max"}'})

    metrics = read(engine, 'my_page_size 32\nmy_blocks{kind="max"} 500\nmy_blocks{kind="free"} 100\n')

    assert (metrics.kv_cache_block_tokens, metrics.kv_cache_blocks) == (32, 500)


def test_adapters_are_read_from_a_family_of_the_usual_form() -> None:
    engine = custom_engine({"name": "x", "loraSpec": "my_lora_info"})

    metrics = read(engine, 'my_lora_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters="b"} 1.7e9\n')

    assert metrics.lora == LoraState(active=frozenset({"a"}), waiting=frozenset({"b"}), max_adapters=2)


@pytest.mark.parametrize(("spec", "name"), [("busy", "busy_total"), ("busy_total", "busy"), ("busy", "busy")])
def test_a_counter_is_found_with_and_without_its_ending(spec: str, name: str) -> None:
    engine = custom_engine({"name": "x", "runningRequestsSpec": spec + '{a="b"}'})

    assert read(engine, f'{name}{{a="b"}} 3\n{name}{{a="c"}} 4\n').running_requests == 3


def test_an_unknown_key_is_named_with_the_allowed_ones() -> None:
    (problem,) = problems({"engineConfig": []})
    assert problem == (
        "plugins[2].parameters.engineConfig: expected one of engineLabelKey, defaultEngine, engineConfigs, found 'engineConfig'"
    )

    (problem,) = problems({"engineConfigs": [{"name": "a", "queueSpec": "b"}]})
    assert problem.startswith("plugins[2].parameters.engineConfigs[0].queueSpec: expected one of name, queuedRequestsSpec, ")
    assert "cacheNumBlocksLabelName" in problem


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"queuedRequestsSpec": "q"}, ".name: expected the name of the engine"),
        ({"name": ""}, ".name: expected the name of the engine"),
        ({"name": 7}, ".name: expected a text, found 7"),
        ({"name": "a", "kvUsageSpec": 0.5}, ".kvUsageSpec: expected a text, found 0.5"),
        ({"name": "a", "kvUsageSpec": "rate(x[5m])"}, ".kvUsageSpec: expected a selector such as name{"),
        ({"name": "a", "queuedRequestsSpec": 'q{a="b}'}, ".queuedRequestsSpec: expected a selector such as name{"),
        (
            {"name": "a", "cacheInfoSpec": "i"},
            ".cacheInfoSpec: expected cacheBlockSizeLabelName or cacheNumBlocksLabelName beside it",
        ),
        ({"name": "a", "cacheBlockSizeLabelName": "i"}, ".cacheBlockSizeLabelName: expected cacheInfoSpec beside it"),
        ("a", ": expected a map, found 'a'"),
    ],
)
def test_a_wrong_entry_is_named_with_its_place(entry: object, place: str) -> None:
    (problem,) = problems({"engineConfigs": [{"name": "good"}, entry]})

    assert problem.startswith("plugins[2].parameters.engineConfigs[1]" + place)


def test_every_fault_is_told_at_once() -> None:
    found = problems(
        {
            "x": 1,
            "defaultEngine": 3,
            "engineConfigs": [{"name": "a", "kvUsageSpec": "1"}, {"y": 2}, {"name": "a", "loraSpec": "{"}],
        }
    )

    assert [problem.split(":")[0] for problem in found] == [
        "plugins[2].parameters.x",
        "plugins[2].parameters.defaultEngine",
        "plugins[2].parameters.engineConfigs[0].kvUsageSpec",
        "plugins[2].parameters.engineConfigs[1].y",
        "plugins[2].parameters.engineConfigs[1].name",
        "plugins[2].parameters.engineConfigs[2].loraSpec",
    ]


def test_engines_have_different_names() -> None:
    assert problems({"engineConfigs": [{"name": "a"}, {"name": "a"}]}) == (
        "plugins[2].parameters.engineConfigs[1].name: expected each name once, found 'a' again",
    )


def test_engines_come_in_a_list() -> None:
    assert problems({"engineConfigs": {"name": "a"}})[0].startswith(
        "plugins[2].parameters.engineConfigs: expected a list of engines"
    )


def test_label_names_may_stay_when_their_family_is_switched_off() -> None:
    engine = custom_engine({"name": "a", "cacheInfoSpec": "", "cacheBlockSizeLabelName": "page_size", "kvUsageSpec": "u"})

    assert read(engine, "u 0.5\n") == EndpointMetrics(kv_cache_usage_ratio=0.5)
