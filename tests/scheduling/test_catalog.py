"""Profiles from configuration files."""

import random

import pytest

from epp.config.document_reader import read_document
from epp.errors import ConfigError
from epp.scheduling.catalog import NOT_HERE_YET, PLUGIN_TYPES, Workshop, build_profile
from epp.scheduling.profile import SchedulingProfile

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def build(text: str) -> SchedulingProfile:
    return build_profile(
        read_document(HEAD + text, "c.yaml"), Workshop(rng=random.Random(1), staleness_s=2.0), ["core-metrics-extractor"]
    )


def test_without_plugins_the_default_profile_decides() -> None:
    assert build("").scorer_names == ["least-load-scorer"]
    assert build("plugins: [{type: core-metrics-extractor}]").scorer_names == ["least-load-scorer"]


def test_plugins_without_profiles_make_one_profile_with_weight_1_each() -> None:
    profile = build("plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}]")
    assert [(w.scorer.name, w.weight) for w in profile.scorers] == [("queue-scorer", 1.0), ("kv-cache-utilization-scorer", 1.0)]
    assert profile.picker.name == "max-score-picker"


def test_a_profile_names_plugins_and_weights() -> None:
    profile = build("""
plugins:
- {name: q, type: queue-scorer}
- {type: running-requests-size-scorer}
- {name: best, type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: q, weight: 2}, {pluginRef: running-requests-size-scorer, weight: 0.5}, {pluginRef: best}]
""")
    assert [(w.scorer.name, w.weight) for w in profile.scorers] == [("q", 2.0), ("running-requests-size-scorer", 0.5)]
    assert profile.picker.name == "best"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("plugins: [{type: quue-scorer}]", r"c.yaml: plugins\[0\].type: expected one of .*queue-scorer.*, found 'quue-scorer'"),
        (
            "plugins: [{type: queue-scorer, parameters: {depth: 3}}]",
            r"c.yaml: plugins\[0\].parameters.depth: expected no parameters, found 'depth'",
        ),
        (
            "plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 0}}]",
            r"plugins\[0\].parameters.maxNumOfEndpoints: expected a whole number from 1 to 2147483647, found 0",
        ),
        (
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            r"plugins\[1\].name: expected each name once, found 'queue-scorer' again",
        ),
        (
            "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: d, plugins: [{pluginRef: kv}]}]",
            r"schedulingProfiles\[0\].plugins\[0\].pluginRef: expected one of queue-scorer, found 'kv'",
        ),
        (
            "plugins: [{type: max-score-picker}]\nschedulingProfiles: [{name: d, plugins: [{pluginRef: max-score-picker}]}]",
            r"expected at least one scorer, found none",
        ),
        (
            "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}, {name: b}]",
            r"schedulingProfiles\[1\]: expected one profile, found 2",
        ),
    ],
)
def test_a_wrong_plugin_is_named_with_its_path_and_what_is_allowed(text: str, problem: str) -> None:
    """Field report 70: all configuration is checked before serving."""
    with pytest.raises(ConfigError, match=problem):
        build(text)


def test_a_type_that_other_pickers_have_is_one_fault_and_so_called() -> None:
    with pytest.raises(ConfigError) as caught:
        build("""
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer, weight: 3}]
""")
    (problem,) = caught.value.problems
    assert problem.startswith("c.yaml: plugins[2].type: expected one of ")
    assert problem.endswith("found 'prefix-cache-scorer', which other endpoint pickers have and this one does not yet")


def test_a_reference_to_nothing_is_one_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        build("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: d, plugins: [{pluginRef: kv, weight: 2}]}]")
    assert len(caught.value.problems) == 1


def test_no_type_is_both_here_and_not_here_yet() -> None:
    assert not NOT_HERE_YET & PLUGIN_TYPES.keys()
