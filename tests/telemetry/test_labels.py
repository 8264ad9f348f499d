"""Label values that come from clients."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epp.telemetry.labels import MAX_CHARACTERS, MAX_VALUES, OTHER, LabelLimit


def test_the_first_thousand_values_keep_their_label_and_the_rest_share_one() -> None:
    limit = LabelLimit()

    labels = [limit.label(f"model-{i}") for i in range(MAX_VALUES + 500)]

    assert labels[:MAX_VALUES] == [f"model-{i}" for i in range(MAX_VALUES)]
    assert set(labels[MAX_VALUES:]) == {OTHER}
    assert limit.label("model-7") == "model-7"


def test_names_of_the_configuration_keep_their_label_whatever_clients_sent_before() -> None:
    limit = LabelLimit(["ours"], limit=2)

    assert [limit.label(name) for name in ("a", "b", "c", "ours")] == ["a", "b", OTHER, "ours"]


def test_names_that_join_the_configuration_later_take_no_room() -> None:
    limit = LabelLimit(limit=1)
    long = "x" * (MAX_CHARACTERS + 50)

    assert limit.label("a") == "a"
    assert limit.label("ours") == OTHER
    assert [limit.configured(name) for name in ("ours", "a", long)] == ["ours", "a", long]
    assert [limit.label(name) for name in ("ours", "a", long, "b")] == ["ours", "a", long, OTHER]


def test_a_value_of_a_megabyte_is_cut() -> None:
    limit = LabelLimit()

    label = limit.label("x" * 1_000_000)

    assert len(label) == MAX_CHARACTERS
    assert label.endswith("x…")
    assert limit.label("x" * 2_000_000) == label


def test_a_long_name_of_the_configuration_is_not_cut() -> None:
    name = "organisation/" + "x" * 400

    assert LabelLimit([name]).label(name) == name


class _OneGauge:
    def __init__(self, label: str) -> None:
        self._label = label

    def collect(self) -> list[Metric]:
        family = GaugeMetricFamily("g", "A gauge.", labels=("model",))
        family.add_metric((self._label,), 1)
        return [family]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ('a"b', 'a"b'),
        ("a\\b", "a\\b"),
        ("a\nb", "a\ufffdb"),
        ("a\r\x00b", "a\ufffd\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("a\u2028b", "a\ufffdb"),
        ("模型-β", "模型-β"),
        ("", ""),
    ],
)
def test_odd_characters_reach_the_page_unharmed_or_replaced(sent: str, shown: str) -> None:
    registry = CollectorRegistry()
    registry.register(_OneGauge(LabelLimit().label(sent)))

    (family,) = text_string_to_metric_families(generate_latest(registry).decode())

    assert [sample.labels for sample in family.samples] == [{"model": shown}]
