"""What the registry says of endpoints that leave rotation."""

from prometheus_client import CollectorRegistry

from epp.telemetry.metrics import Metrics


def test_times_are_shown_by_phase_and_cuts_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.endpoint_drain_ended(0.0, 45.0)
    metrics.endpoint_drain_ended(2.0, 3.0)
    metrics.endpoint_drain_cut()

    def value(suffix: str, phase: str, **more: str) -> float | None:
        return registry.get_sample_value(f"epp_endpoint_drain_seconds_{suffix}", {"phase": phase, **more})

    assert (value("count", "last_pick"), value("sum", "last_pick")) == (2, 2.0)
    assert (value("count", "last_stream"), value("sum", "last_stream")) == (2, 48.0)
    assert value("bucket", "last_pick", le="0.1") == 1
    assert registry.get_sample_value("epp_endpoint_drain_cut_requests_total") == 1


def test_a_recommendation_is_shown_once_there_is_one() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    assert registry.get_sample_value("epp_recommended_min_wait_seconds") is None
    metrics.read_recommended_min_wait_from(lambda: 7.0)
    assert registry.get_sample_value("epp_recommended_min_wait_seconds") == 7.0
