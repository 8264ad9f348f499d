"""The rules and the dashboard name only what the program exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from epp.admin.pool_collector import PoolCollector
from epp.lifecycle import Lifecycle
from epp.telemetry.kubernetes_metrics import KubernetesMetrics
from epp.telemetry.metrics import Metrics
from epp.telemetry.outcome import RequestOutcome
from epp.telemetry.picker_metrics import Build
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, tell

CONFIG = Path(__file__).parents[2] / "config"
RULES = CONFIG / "prometheus" / "epp-rules.yaml"
DASHBOARD = CONFIG / "grafana" / "epp.json"
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}


def exported() -> dict[str, set[str]]:
    """Every sample name of a picker that has seen traffic, with the names of its labels."""
    registry, clock, lifecycle = CollectorRegistry(), FakeClock(), Lifecycle()
    metrics, pool = Metrics(registry), pool_of(2, clock)
    registry.register(PoolCollector(pool, lifecycle, clock))
    endpoint = pool.endpoints[0]
    tell(endpoint, clock, waiting_requests=1.0, running_requests=1.0, kv_cache_usage_ratio=0.5)
    metrics.describe_build(Build(version="1", python="3.11", transport="grpcio"))
    metrics.read_buffered_bytes_from(lambda: 0)
    metrics.expect_tls_handshakes()
    metrics.read_peer_failures_from(lambda: 0)
    metrics.read_recommended_min_wait_from(lambda: 1.0)
    metrics.endpoint_drain_ended(0.0, 1.0)
    metrics.body_not_inspected("memory")
    metrics.not_picked(0.001, "no_endpoints", "m")
    metrics.picked(0.001, "e1", endpoint.address, "m")
    metrics.scrape_failed(endpoint, "timeout")
    good = RequestOutcome(
        started_at_s=1.0, first_byte_at_s=1.5, ended_at_s=2.0, status=200, streaming=True, endpoint=endpoint.address
    )
    good.prompt_tokens = good.completion_tokens = good.cached_tokens = 5
    metrics.request_ended(good)
    metrics.request_ended(RequestOutcome(started_at_s=1.0, ended_at_s=2.0, status=503, error_code="no_endpoints"))
    kubernetes = KubernetesMetrics()
    kubernetes.read_ages_from(lambda: {"pods": 1.0})
    kubernetes.unusable_pods = {"no_target_port": 1}
    registry.register(kubernetes)
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


EXPORTED = exported()
ADDED_BY_PROMETHEUS = {"instance", "job"}


def metric_names(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads: identifiers that are no function, keyword, label or unit."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return {m[0] for m in re.finditer(r"[a-zA-Z_:][\w:]*(?!\w|\s*\()", bare)} - WORDS


def label_names(expression: str) -> Iterator[str]:
    """Labels in matchers and groupings of a PromQL expression."""
    for matchers in re.findall(r"\{([^}]*)\}", expression):
        yield from re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', matchers))
    for grouping in re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", expression):
        yield from (label.strip() for label in grouping.split(","))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
EXPRESSIONS = [rule["expr"] for rule in rules()] + [target["expr"] for panel in panels() for target in panel["targets"]]


def test_names_are_found_in_expressions() -> None:
    expression = (
        'histogram_quantile(0.99, sum by (le) (rate(a_bucket{x=~"b|c"}[5m]))) / on (z) max_over_time(r:d:e[1h]) > 5 and f'
    )

    assert metric_names(expression) == {"a_bucket", "r:d:e", "f"}
    assert set(label_names(expression)) == {"x", "le"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_reads_only_exported_metrics_with_labels_they_have(expression: str) -> None:
    names = metric_names(expression)

    assert names
    assert names <= EXPORTED.keys() | RECORDED
    labels = set().union(*(EXPORTED.get(name, set()) for name in names)) | ADDED_BY_PROMETHEUS
    assert set(label_names(expression)) <= labels
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_every_alert_has_a_severity_and_says_what_is_wrong() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]

    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert len(rule["annotations"]["summary"]) > 20


def test_labels_that_alerts_print_are_in_their_expressions() -> None:
    for rule in rules():
        if "alert" not in rule:
            continue
        printed = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        names = metric_names(rule["expr"])
        known = ADDED_BY_PROMETHEUS.union(*(EXPORTED.get(name, set()) for name in names))
        assert printed <= known, rule["alert"]


def test_panels_have_a_title_a_place_of_their_own_and_the_chosen_data_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in panels() for target in panel["targets"])
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}
