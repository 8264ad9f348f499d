"""What is shown of the way to the API server."""

from prometheus_client import CollectorRegistry

from epp.telemetry.kubernetes_metrics import KubernetesMetrics


def test_each_resource_counts_under_its_own_name_whatever_its_reflector_calls_it() -> None:
    registry, metrics = CollectorRegistry(), KubernetesMetrics()
    registry.register(metrics)
    pods, pools = metrics.of("pods"), metrics.of("inferencepools")
    pods.listed("x", 0.1, 3)
    pods.watch_ended("x", "cut")
    pods.watch_ended("x", "cut")
    pools.api_error("x", "forbidden")
    metrics.holds("pods", 3)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("epp_kubernetes_lists_total", resource="pods") == 1
    assert value("epp_kubernetes_watch_ends_total", resource="pods", reason="cut") == 2
    assert value("epp_kubernetes_api_errors_total", resource="inferencepools", reason="forbidden") == 1
    assert value("epp_kubernetes_objects", resource="pods") == 3


def test_an_age_that_is_not_known_is_absent_and_never_0() -> None:
    registry, metrics = CollectorRegistry(), KubernetesMetrics()
    registry.register(metrics)
    metrics.read_ages_from(lambda: {"pods": 2.5, "inferencepools": None})
    assert registry.get_sample_value("epp_kubernetes_state_age_seconds", {"resource": "pods"}) == 2.5
    assert registry.get_sample_value("epp_kubernetes_state_age_seconds", {"resource": "inferencepools"}) is None


def test_the_leader_shows_only_where_one_is_elected() -> None:
    registry, metrics = CollectorRegistry(), KubernetesMetrics()
    registry.register(metrics)
    assert registry.get_sample_value("epp_leader") is None
    metrics.leads = lambda: True
    assert registry.get_sample_value("epp_leader") == 1


def test_pods_that_cannot_be_used_are_shown_by_reason_with_those_that_have_none() -> None:
    registry, metrics = CollectorRegistry(), KubernetesMetrics()
    registry.register(metrics)
    metrics.unusable_pods = {"no_target_port": 1, "bad_annotation": 0}
    assert registry.get_sample_value("epp_unusable_pods", {"reason": "no_target_port"}) == 1
    assert registry.get_sample_value("epp_unusable_pods", {"reason": "bad_annotation"}) == 0
