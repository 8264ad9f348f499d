"""Counting of the process, told in the words of the callers."""

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from epp.telemetry.metrics import Metrics
from epp.telemetry.outcome import RequestOutcome
from epp.telemetry.picker_metrics import Build
from tests.telemetry.page import Page


@dataclass(frozen=True)
class At:
    address: str


A, B = At("10.0.0.1:8000"), At("[fd00::7]:8001")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def answered(metrics: Metrics, endpoint: At, status: int) -> None:
    metrics.request_ended(RequestOutcome(started_at_s=1.0, ended_at_s=2.0, status=status, endpoint=endpoint.address))


def test_a_pick_counts_under_the_names_of_both_generations(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.picked(0.00003, "gpu-b", B.address, "llama")

    page = Page(registry)
    place = {"status": "success", "target_model_name": "llama", "namespace": "", "port": "8001"}
    assert page.value("inference_extension_scheduler_attempts_total", **place, pod_name="gpu-b") == 1
    assert page.value("llm_d_epp_scheduler_attempts_total", **place, endpoint_name="gpu-b") == 1
    assert page.value("epp_pick_duration_seconds_bucket", le="2e-05") == 0
    assert page.value("epp_pick_duration_seconds_bucket", le="5e-05") == 1
    for name in ("inference_extension", "llm_d_epp"):
        assert page.value(f"{name}_scheduler_e2e_duration_seconds_bucket", le="0.0001") == 1
        assert page.value(f"{name}_scheduler_e2e_duration_seconds_sum") == 0.00003


def test_a_decision_without_an_endpoint_is_a_failed_attempt_and_has_its_code(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.not_picked(0.00001, "subset_empty", "llama")

    page = Page(registry)
    ((labels, count),) = page.samples("inference_extension_scheduler_attempts_total")
    assert count == 1
    assert labels == {"status": "failure", "target_model_name": "llama", "pod_name": "", "namespace": "", "port": ""}
    assert page.value("epp_pick_errors_total", code="subset_empty") == 1
    assert page.value("epp_pick_duration_seconds_count") == 1


def test_the_series_of_an_endpoint_that_left_go_away_and_those_of_the_others_stay(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    for endpoint in (A, B):
        metrics.picked(0.00003, "name", endpoint.address, "llama")
        metrics.scrape_failed(endpoint, "timeout")
        answered(metrics, endpoint, 200)

    metrics.endpoint_gone(A)
    answered(metrics, A, 200)

    page = Page(registry)
    assert A.address not in page.text
    assert [labels["port"] for labels, _ in page.samples("inference_extension_scheduler_attempts_total")] == ["8001"]
    assert page.value("epp_scrape_errors_total", endpoint=B.address, reason="timeout") == 1
    assert page.value("epp_endpoint_responses_total", endpoint=B.address, code="2xx") == 1


def test_responses_count_by_endpoint_and_class(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.picked(0.00003, "gpu-a", A.address, "llama")
    for status in (200, 204, 500, 999):
        answered(metrics, A, status)

    counts = {labels["code"]: count for labels, count in Page(registry).samples("epp_endpoint_responses_total")}
    assert counts == {"2xx": 2, "5xx": 1, "invalid": 1}


def test_scrapes_count_their_time_their_size_and_their_failures(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.scrape_ended(A, 0.004, 50_000)
    metrics.scrape_failed(A, "timeout")
    metrics.scrape_failed(A, "timeout")
    metrics.scrape_failed(B, "connect")

    page = Page(registry)
    assert page.value("epp_scrape_duration_seconds_bucket", le="0.005") == 1
    assert page.value("epp_scrape_page_bytes_sum") == 50_000
    assert page.value("epp_scrape_errors_total", endpoint=A.address, reason="timeout") == 2
    assert page.value("epp_scrape_errors_total", endpoint=B.address, reason="connect") == 1
    for prefix in ("llm_d_inference_scheduler", "llm_d_epp"):
        assert page.value(f"{prefix}_datalayer_poll_errors_total", source_type="metrics-data-source") == 3


def test_values_that_cannot_be_right_count_by_fault(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.value_discarded(A, "negative")
    metrics.value_discarded(A, "negative")
    metrics.endpoint_gone(B)

    page = Page(registry)
    assert page.value("epp_scrape_values_discarded_total", endpoint=A.address, fault="negative") == 2

    metrics.endpoint_gone(A)
    assert Page(registry).samples("epp_scrape_values_discarded_total") == []


def test_reasons_that_carry_changing_text_stay_few(metrics: Metrics, registry: CollectorRegistry) -> None:
    for i in range(500):
        metrics.scrape_failed(A, f"no answer to attempt {i}")

    assert len(Page(registry).samples("epp_scrape_errors_total")) == 51


def test_bodies_drain_and_mismatches_count(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.body_read(0.03)
    metrics.body_not_inspected("memory")
    metrics.served_elsewhere()
    metrics.drain_ended(4.0, 2)

    page = Page(registry)
    assert page.value("epp_body_read_duration_seconds_bucket", le="0.05") == 1
    assert page.value("epp_bodies_not_inspected_total", reason="memory") == 1
    assert page.value("epp_served_mismatch_total") == 1
    assert page.value("epp_drain_duration_seconds_sum") == 4.0
    assert page.value("epp_drain_cut_requests_total") == 2


def test_the_time_to_the_pick_is_the_reference_pickers_request_processing(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.request_ended(RequestOutcome(started_at_s=1.0, picked_at_s=1.003, ended_at_s=2.0, status=200))

    assert Page(registry).value("llm_d_epp_request_processing_duration_seconds_bucket", le="0.005") == 1


def test_a_broken_configuration_shows_until_it_is_mended(metrics: Metrics, registry: CollectorRegistry) -> None:
    assert Page(registry).value("epp_config_valid") == 1

    metrics.config_is_valid(False)
    assert Page(registry).value("epp_config_valid") == 0

    metrics.config_is_valid(True)
    assert Page(registry).value("epp_config_valid") == 1


def test_the_build_is_told_to_dashboards_of_every_generation(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.describe_build(Build(version="1.2.3", python="3.11.4", transport="grpcio", commit="abc"))

    page = Page(registry)
    assert page.value("epp_build_info", version="1.2.3", python="3.11.4", transport="grpcio") == 1
    assert page.value("inference_extension_info", commit="abc", build_ref="1.2.3") == 1
    assert page.value("llm_d_epp_info", commit="abc", build_ref="1.2.3") == 1


def test_buffered_bytes_are_asked_for_at_each_reading(metrics: Metrics, registry: CollectorRegistry) -> None:
    held = [0]
    metrics.read_buffered_bytes_from(lambda: held[0])
    held[0] = 12_345

    assert Page(registry).value("epp_buffered_bytes") == 12_345


def test_what_nobody_feeds_in_this_process_has_no_family(registry: CollectorRegistry, metrics: Metrics) -> None:
    page = Page(registry)

    assert not {"epp_buffered_bytes", "epp_tls_handshake_failures", "epp_build_info"} & page.families.keys()


def test_failed_tls_handshakes_count_from_zero_where_the_transport_can_tell_them(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    """Field report 30: connections that die in the handshake are counted."""
    metrics.expect_tls_handshakes()
    assert Page(registry).value("epp_tls_handshake_failures_total") == 0

    for _ in range(10):
        metrics.tls_handshake_failed()

    assert Page(registry).value("epp_tls_handshake_failures_total") == 10


def test_the_cost_of_the_process_itself_is_on_the_page(metrics: Metrics, registry: CollectorRegistry) -> None:
    page = Page(registry)

    assert (page.value("process_resident_memory_bytes") or 0) > 1_000_000
    assert (page.value("process_cpu_seconds_total") or 0) > 0


def test_no_series_tells_when_another_was_made(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.picked(0.00003, "gpu-a", A.address, "llama")
    metrics.scrape_failed(A, "timeout")

    assert "_created" not in Page(registry).text
