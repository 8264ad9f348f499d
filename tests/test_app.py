"""What the composition root adds of its own."""

from prometheus_client import CollectorRegistry, generate_latest

from epp.app import ConnectionObserver
from epp.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock


class Warnings:
    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.told.append((event, fields["detail"]))


def test_failed_handshakes_are_counted_each_time_and_told_once_a_minute() -> None:
    """Field report 30: counter of at least 10, one line."""
    registry, clock, log = CollectorRegistry(), FakeClock(), Warnings()
    metrics = Metrics(registry)
    metrics.expect_tls_handshakes()
    observer = ConnectionObserver(metrics, log, clock)  # type: ignore[arg-type]
    for _ in range(10):
        observer.handshake_failed("expected TLS, found plaintext")
        clock.advance(1.0)
    assert log.told == [("TLS handshakes fail", "expected TLS, found plaintext")]
    assert registry.get_sample_value("epp_tls_handshake_failures_total") == 10
    clock.advance(60.0)
    observer.handshake_failed("expected TLS, found plaintext")
    assert len(log.told) == 2


def test_limits_of_the_wire_are_shown_by_name() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.read_wire_limits_from(lambda: {"streams": 3})
    assert registry.get_sample_value("epp_wire_limits_total", {"limit": "streams"}) == 3


def test_queue_and_prefix_index_say_what_they_are_now() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.picked(0.001, "a", "10.0.0.1:8000", "m")
    assert registry.get_sample_value("epp_queue_duration_seconds_count") == 1
    assert registry.get_sample_value("epp_queue_duration_seconds_sum") == 0
    assert registry.get_sample_value("epp_prefix_index_bytes") == 0
    assert b"epp_queue_duration_seconds_bucket" in generate_latest(registry)
