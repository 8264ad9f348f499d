"""Reading the configuration file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.document_reader import read_document
from epp.errors import ConfigError

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_document(text, "c.yaml")
    return list(caught.value.problems)


def test_settings_plugins_and_profiles_are_read() -> None:
    document = read_document(
        HEAD
        + """
scrape: {interval: 100ms, enabled: false, headers: {x-key: "1"}}
limits: {maxRequestBodyBytes: 1MiB}
plugins:
- {type: queue-scorer}
- {name: best, type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer, weight: 2.5}, {pluginRef: best}]}
""",
        "c.yaml",
    )
    assert document.values == {
        ("scrape", "interval_s"): 0.1,
        ("scrape", "enabled"): False,
        ("scrape", "headers"): (("x-key", "1"),),
        ("limits", "max_request_body_bytes"): 1 << 20,
    }
    assert [(p.name, p.type, p.parameters) for p in document.plugins] == [
        ("queue-scorer", "queue-scorer", {}),
        ("best", "max-score-picker", {"maxNumOfEndpoints": 2}),
    ]
    assert [(r.name, r.weight) for r in document.profiles[0].plugins] == [("queue-scorer", 2.5), ("best", None)]


def test_the_older_api_version_is_accepted() -> None:
    read_document("apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n", "c.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "c.yaml: expected a map with apiVersion and kind: EndpointPickerConfig, found nothing"),
        ("- a", "c.yaml: expected a map with apiVersion and kind: EndpointPickerConfig, found a list (line 1)"),
        ("kind: EndpointPickerConfig", "c.yaml: apiVersion: expected llm-d.ai/v1alpha1 or inference.networking.x-k8s.io/v1alpha1, found nothing"),
        (HEAD + "scrap: {}", "c.yaml: scrap: expected one of apiVersion, kind, plugins, schedulingProfiles, admin, drain, health, limits, requests, scrape, found 'scrap' (line 3)"),
        (HEAD + "scrape: {intervall: 1s}", "c.yaml: scrape.intervall: expected one of enabled, headers, insecureSkipVerify, interval, maxPageBytes, maxRatePerSecond, path, port, scheme, stalenessThreshold, timeout, found 'intervall' (line 3)"),
        (HEAD + "scrape: {interval: -1s}", "c.yaml: scrape.interval: expected a duration such as 50ms, 2s or 1m of at least 1ms, found '-1s' (line 3)"),
        (HEAD + "scrape: 5", "c.yaml: scrape: expected a map, found 5 (line 3)"),
        (HEAD + "plugins: {}", "c.yaml: plugins: expected a list, found a map (line 3)"),
        (HEAD + "plugins: [x]", 'c.yaml: plugins[0]: expected a map, found "x" (line 3)'),
        (HEAD + "plugins: [{name: x}]", "c.yaml: plugins[0].type: expected a text, found nothing"),
        (HEAD + "plugins: [{type: x, parameters: 3}]", "c.yaml: plugins[0].parameters: expected a map, found 3 (line 3)"),
        (HEAD + "schedulingProfiles: [{name: d, plugins: [{pluginRef: x, weight: -1}]}]", "c.yaml: schedulingProfiles[0].plugins[0].weight: expected a number of at least 0, found -1 (line 3)"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_path_expectation_and_line(text: str, problem: str) -> None:
    """Field report 70: wrong keys and values are named with what is allowed."""
    assert problem in problems(text)


def test_all_faults_are_told_at_once() -> None:
    assert len(problems(HEAD + "scrape: {interval: x, timeout: y}\nlimits: {a: 1}")) == 3


@given(st.text() | st.text().map(lambda text: HEAD + text))
def test_arbitrary_text_is_a_document_or_a_config_error(text: str) -> None:
    try:
        read_document(text, "c.yaml")
    except ConfigError as error:
        assert all(problem.startswith("c.yaml: ") for problem in error.problems)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("plugins: [{type: x, parameters: {a: [{b: %s}]}}]", "plugins[0].parameters.a[0].b"),
        ("limits: {maxConnections: %s}", "limits.maxConnections"),
    ],
)
def test_a_number_of_very_many_digits_is_named_and_not_shown_whole(text: str, path: str) -> None:
    (problem,) = problems(HEAD + text % ("9" * 5000))
    assert problem.startswith(f"c.yaml: {path}: expected a number of at most 300 digits, found 999")
    assert problem.endswith("… (line 3)")
    assert len(problem) < 250


def test_a_key_is_not_shown_at_any_length() -> None:
    assert all(len(problem) < 600 for problem in problems(HEAD + f"scrape: {{? {'k' * 100_000} : 1}}"))


def test_the_headers_of_scrapes_are_never_in_an_error() -> None:
    (problem,) = problems(HEAD + 'scrape: {headers: {authorization: "Bearer SECRET", x-tenant: 5}}')
    assert problem == "c.yaml: scrape.headers: expected a map of texts, found a number at 'x-tenant' (line 3)"


def test_null_stands_for_a_default_that_is_nothing_and_for_no_other() -> None:
    assert read_document(HEAD + "scrape: {path: null, port: ~}", "c.yaml").values == {}
    assert len(problems(HEAD + "scrape: {interval: null}")) == 1
