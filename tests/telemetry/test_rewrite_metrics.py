"""Counting decisions of rewrite rules under the names of the reference pickers."""

import pytest
from prometheus_client import CollectorRegistry

from epp.telemetry.labels import MAX_VALUES
from epp.telemetry.metrics import Metrics
from epp.telemetry.outcome import RequestOutcome
from tests.telemetry.page import Page

NAMES = ("inference_extension_model_rewrite_decisions_total", "llm_d_epp_model_rewrite_decisions_total")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.mark.parametrize("name", NAMES)
def test_decisions_count_by_rule_model_and_target(metrics: Metrics, registry: CollectorRegistry, name: str) -> None:
    for target in ("b", "b", "c"):
        metrics.model_rewritten("canary", "a", target)

    page = Page(registry)
    assert page.value(name, model_rewrite_name="canary", model_name="a", target_model="b") == 2
    assert page.value(name, model_rewrite_name="canary", model_name="a", target_model="c") == 1
    assert page.type_of(name.removesuffix("_total")) == "counter"


def test_models_of_clients_are_capped_and_those_of_the_rules_keep_theirs(metrics: Metrics, registry: CollectorRegistry) -> None:
    """A rule for every model matches whatever clients invent."""
    for i in range(MAX_VALUES + 100):
        metrics.model_rewritten("all", f"invented-{i}", "first")
    metrics.model_rewritten("all", "one-more", "second")

    family = next(f for f in registry.collect() if f.name == NAMES[0].removesuffix("_total"))
    by_labels = {(s.labels["model_name"], s.labels["target_model"]): s.value for s in family.samples}
    assert len(by_labels) == MAX_VALUES + 2
    assert by_labels["other", "first"] == 100
    assert by_labels["other", "second"] == 1


def test_a_rewritten_request_keeps_its_target_as_a_label_however_many_models_clients_invent(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    for i in range(MAX_VALUES):
        metrics.not_picked(0.0, "no_endpoints", f"invented-{i}")
    metrics.model_rewritten("all", "one-more", "target")
    metrics.picked(0.0, "gpu-a", "10.0.0.1:8000", "target")
    metrics.request_began(RequestOutcome(started_at_s=1.0, model="one-more", target_model="target"))

    page = Page(registry)
    assert page.value("inference_objective_request_total", model_name="other", target_model_name="target") == 1
    assert page.value("inference_extension_scheduler_attempts_total", status="success", target_model_name="target") == 1


def test_names_that_cannot_be_printed_stay_readable(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.model_rewritten("all", "a", "line\nbreak")

    assert Page(registry).value(NAMES[0], target_model="line\ufffdbreak") == 1
