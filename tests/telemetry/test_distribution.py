"""Counting values into buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from epp.telemetry import buckets
from epp.telemetry.distribution import Distribution, HistogramName


def _samples(name: HistogramName, distribution: Distribution) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels.get("le", "")): s.value for s in name.family([((), distribution)]).samples}


@given(st.lists(st.one_of(st.floats(0, 4000), st.sampled_from(buckets.LATENCY_S))))
def test_counts_equal_those_of_the_library_histogram(values: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("h", "A histogram.", buckets=buckets.LATENCY_S, registry=registry)
    ours = Distribution(buckets.LATENCY_S)
    for value in values:
        theirs.observe(value)
        ours.observe(value)

    expected = {
        (s.name, s.labels.get("le", "")): s.value
        for family in registry.collect()
        for s in family.samples
        if not s.name.endswith("_created")
    }

    got = _samples(HistogramName("h", "A histogram.", counted_in=buckets.LATENCY_S), ours)
    assert got.pop(("h_sum", "")) == pytest.approx(expected.pop(("h_sum", "")))
    assert got == expected


def test_a_name_can_show_fewer_buckets_than_are_counted() -> None:
    distribution = Distribution((1.0, 2.0, 5.0))
    for value in (0.5, 1.5, 3.0, 9.0):
        distribution.observe(value)

    shown = _samples(HistogramName("h", "A histogram.", counted_in=(1.0, 2.0, 5.0), shown_in=(2.0,)), distribution)

    assert shown == {("h_bucket", "2.0"): 2, ("h_bucket", "+Inf"): 4, ("h_count", ""): 4, ("h_sum", ""): 14.0}


def test_a_bound_that_is_not_counted_cannot_be_shown() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        HistogramName("h", "A histogram.", counted_in=(1.0, 2.0), shown_in=(1.5,))


def test_the_sum_of_distributions_has_all_their_values() -> None:
    one, other = Distribution((1.0,)), Distribution((1.0,))
    one.observe(0.5)
    other.observe(7.0)

    together = Distribution.sum_of([one, other])

    assert (together.counts, together.total) == ([1, 1], 7.5)
    assert (one.counts, other.counts) == ([1, 0], [0, 1])


def test_a_distribution_is_true_once_it_has_a_value() -> None:
    distribution = Distribution((1.0,))
    assert not distribution

    distribution.observe(0.0)

    assert distribution


def test_buckets_of_the_reference_pickers_are_theirs_to_the_digit() -> None:
    assert len(buckets.LATENCY_S) == 35
    assert (buckets.LATENCY_S[0], buckets.LATENCY_S[-1]) == (0.005, 3600)
    assert len(buckets.TIME_PER_TOKEN_S) == 35
    assert buckets.TIME_PER_TOKEN_S[1] == 0.00205
    assert (buckets.REQUEST_BYTES[0], buckets.REQUEST_BYTES[-1], len(buckets.REQUEST_BYTES)) == (64, 1_073_741_824, 25)
    assert buckets.RESPONSE_BYTES[-2:] == (32778, 65536)
    assert buckets.PROMPT_TOKENS[-1] == 1_048_576
    assert buckets.OUTPUT_TOKENS[-1] == 8192
    assert buckets.SCHEDULING_S == (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
