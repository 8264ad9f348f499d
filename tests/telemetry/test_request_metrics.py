"""Counting requests under the names of the reference pickers."""

import pytest
from prometheus_client import CollectorRegistry

from epp.telemetry.metrics import Metrics
from epp.telemetry.outcome import RequestOutcome
from tests.telemetry.page import Page

LEGACY = {"model_name": "llama", "target_model_name": "llama"}
CURRENT = {**LEGACY, "fairness_id": "default-flow", "priority": "0"}
HISTOGRAMS = [
    ("inference_objective_request_duration_seconds", "llm_d_epp_request_duration_seconds", 2.0),
    ("inference_objective_request_sizes", "llm_d_epp_request_size_bytes", 500),
    ("inference_objective_response_sizes", "llm_d_epp_response_size_bytes", 9000),
    ("inference_objective_input_tokens", "llm_d_epp_request_input_tokens", 100),
    ("inference_objective_output_tokens", "llm_d_epp_request_output_tokens", 11),
    ("inference_objective_prompt_cached_tokens", "llm_d_epp_request_cached_tokens", 64),
    ("inference_objective_request_ttft_seconds", "llm_d_epp_request_ttft_seconds", 0.5),
    ("inference_objective_request_tpot_seconds", "llm_d_epp_request_streaming_tpot_seconds", 0.15),
    ("inference_objective_normalized_time_per_output_token_seconds", "llm_d_epp_request_ntpot_seconds", 2.0 / 11),
]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, model_names=["configured"])


def began(metrics: Metrics, model: str = "llama", target_model: str = "", priority: int = 0) -> RequestOutcome:
    outcome = RequestOutcome(started_at_s=10.0, model=model, target_model=target_model, priority=priority, request_bytes=500)
    metrics.request_began(outcome)
    return outcome


def answer(outcome: RequestOutcome, *, status: int = 200, streaming: bool = True) -> RequestOutcome:
    outcome.status = status
    outcome.streaming = streaming
    outcome.first_byte_at_s, outcome.ended_at_s = 10.5, 12.0
    outcome.response_bytes = 9000
    outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens = 100, 11, 64
    return outcome


@pytest.mark.parametrize(("legacy", "current", "value"), HISTOGRAMS)
def test_a_good_streamed_response_is_in_every_histogram_under_both_names(
    metrics: Metrics, registry: CollectorRegistry, legacy: str, current: str, value: float
) -> None:
    metrics.request_ended(answer(began(metrics)))

    page = Page(registry)
    for name, labels in ((legacy, LEGACY), (current, CURRENT)):
        assert page.type_of(name) == "histogram"
        assert page.value(f"{name}_count", **labels) == 1
        assert page.value(f"{name}_sum", **labels) == pytest.approx(value)
    ((labels, _),) = page.samples(f"{legacy}_count")
    assert labels == LEGACY


def test_the_bucket_of_a_value_is_the_first_whose_bound_it_does_not_exceed(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.request_ended(answer(began(metrics)))

    page = Page(registry)
    assert page.value("inference_objective_request_duration_seconds_bucket", le="1.5") == 0
    assert page.value("inference_objective_request_duration_seconds_bucket", le="2.0") == 1
    assert page.value("inference_objective_request_duration_seconds_bucket", le="3600.0") == 1


def test_a_request_runs_from_its_begin_to_its_end(metrics: Metrics, registry: CollectorRegistry) -> None:
    first, second = began(metrics), began(metrics)

    assert Page(registry).value("inference_objective_running_requests", model_name="llama") == 2
    assert Page(registry).value("llm_d_epp_request_running", **CURRENT) == 2

    metrics.request_ended(answer(first))
    second.cancelled = True
    metrics.request_ended(second)

    page = Page(registry)
    assert page.value("inference_objective_running_requests", model_name="llama") == 0
    assert page.value("llm_d_epp_request_running", **CURRENT) == 0
    assert page.value("inference_objective_request_total", **LEGACY, priority="0") == 2
    assert page.value("llm_d_epp_request_total", **CURRENT) == 2


def test_a_request_that_ends_before_it_began_counts_once_and_never_ran(metrics: Metrics, registry: CollectorRegistry) -> None:
    outcome = RequestOutcome(started_at_s=10.0, ended_at_s=10.1, error_code="body_too_large", status=413)

    metrics.request_ended(outcome)

    page = Page(registry)
    assert page.value("inference_objective_request_total", model_name="") == 1
    assert page.value("inference_objective_running_requests", model_name="") == 0
    assert page.value("inference_objective_request_error_total", error_code="body_too_large") == 1


@pytest.mark.parametrize(("status", "code"), [(400, "upstream_400"), (503, "upstream_503"), (799, "upstream_invalid")])
def test_an_error_of_the_model_server_counts_by_its_status(
    metrics: Metrics, registry: CollectorRegistry, status: int, code: str
) -> None:
    metrics.request_ended(answer(began(metrics), status=status))

    page = Page(registry)
    assert page.value("inference_objective_request_error_total", **LEGACY) == 1
    assert page.value("llm_d_epp_request_error_total", **CURRENT, error_code=code) == 1
    assert page.value("inference_objective_request_duration_seconds_count", **LEGACY) is None


def test_the_pickers_own_refusal_is_named_by_its_code_and_not_by_the_status_it_sent(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    outcome = began(metrics)
    outcome.error_code, outcome.status, outcome.ended_at_s = "no_endpoints", 503, 10.1
    metrics.request_ended(outcome)

    ((labels, count),) = Page(registry).samples("inference_objective_request_error_total")
    assert (labels["error_code"], count) == ("no_endpoints", 1)


def test_a_client_that_leaves_is_no_error_and_no_duration(metrics: Metrics, registry: CollectorRegistry) -> None:
    """Field report 17: a reset after the pick is a normal end."""
    outcome = answer(began(metrics))
    outcome.cancelled = True
    metrics.request_ended(outcome)

    page = Page(registry)
    assert page.samples("inference_objective_request_error_total") == []
    assert page.samples("inference_objective_request_duration_seconds_count") == []
    assert page.value("inference_objective_request_sizes_count", **LEGACY) == 1


def test_a_response_that_is_not_streamed_has_its_first_token_at_its_end(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.request_ended(answer(began(metrics), streaming=False))

    page = Page(registry)
    assert page.value("llm_d_epp_request_ttft_seconds_sum", streaming="false") == 2.0
    assert page.value("inference_objective_request_ttft_seconds_sum") == 2.0
    assert page.samples("llm_d_epp_request_ttft_seconds_sum", streaming="true") == []
    assert page.samples("inference_objective_request_tpot_seconds_count") == []


def test_tokens_that_no_response_reported_have_no_series(metrics: Metrics, registry: CollectorRegistry) -> None:
    outcome = answer(began(metrics))
    outcome.prompt_tokens = outcome.completion_tokens = outcome.cached_tokens = None
    metrics.request_ended(outcome)

    page = Page(registry)
    for name in ("input_tokens", "output_tokens", "prompt_cached_tokens", "normalized_time_per_output_token_seconds"):
        assert page.samples(f"inference_objective_{name}_count") == []


def test_a_response_without_output_tokens_divides_nothing_by_zero(metrics: Metrics, registry: CollectorRegistry) -> None:
    outcome = answer(began(metrics))
    outcome.completion_tokens = 0
    metrics.request_ended(outcome)

    page = Page(registry)
    assert page.value("inference_objective_output_tokens_sum", **LEGACY) == 0
    assert page.samples("inference_objective_normalized_time_per_output_token_seconds_count") == []


def test_priorities_have_their_own_series_only_where_the_reference_has_the_label(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.request_ended(answer(began(metrics, target_model="llama-lora")))
    metrics.request_ended(answer(began(metrics, target_model="llama-lora", priority=-1)))

    page = Page(registry)
    target = {"model_name": "llama", "target_model_name": "llama-lora"}
    assert page.value("inference_objective_request_total", **target, priority="-1") == 1
    assert page.value("llm_d_epp_request_duration_seconds_count", **target, priority="-1") == 1
    assert page.value("inference_objective_request_duration_seconds_count", **target) == 2
    assert page.value("inference_objective_running_requests", model_name="llama") == 0


def test_model_names_of_clients_are_capped_and_configured_ones_keep_theirs(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    for i in range(1100):
        metrics.request_ended(answer(began(metrics, model=f"invented-{i}")))
    metrics.request_ended(answer(began(metrics, model="configured")))

    # Read without the text format: a page of a thousand models is sixty megabytes.
    totals = next(family for family in registry.collect() if family.name == "inference_objective_request")
    by_model = {sample.labels["model_name"]: sample.value for sample in totals.samples}
    assert len(by_model) == 1002
    assert by_model["other"] == 100
    assert by_model["configured"] == 1
