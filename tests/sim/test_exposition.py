"""The page writer."""

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client import Gauge as RealGauge
from prometheus_client import Histogram as RealHistogram

from epp.sim.exposition import (
    Histogram,
    HistogramBoard,
    HistogramFamily,
    PageWriter,
    Style,
    labels,
    plain_number,
    six_digits,
)
from epp.sim.job import JobTimes

BOUNDS = (0.1, 0.5, 2.5)


def test_a_page_in_python_style_is_what_prometheus_client_writes() -> None:
    registry = CollectorRegistry()
    gauge = RealGauge("a:gauge", "A gauge.", ["model_name", "engine"], registry=registry)
    counter = Counter("a:things", "A counter.", ["model_name"], registry=registry)
    histogram = RealHistogram("a:wait_seconds", "A histogram.", ["zone", "engine"], buckets=BOUNDS, registry=registry)
    gauge.labels("x", "0").set(3)
    counter.labels('with "quotes"').inc(1_500_000)
    for value in (0.05, 0.5, 9):
        histogram.labels("z", "0").observe(value)
    real = generate_latest(registry).decode()
    created_s = float(next(line.split()[-1] for line in real.splitlines() if line.startswith("a:things_created{")))
    ours = Histogram(BOUNDS)
    for value in (0.05, 0.5, 9):
        ours.observe(value)

    page = PageWriter(style=Style.PYTHON, created_s=created_s)
    page.gauge("a:gauge", "A gauge.", 3, labels(model_name="x", engine="0"))
    page.counter("a:things_total", "A counter.", 1_500_000, labels(model_name='with "quotes"'))
    page.histogram("a:wait_seconds", "A histogram.", ours, {"zone": "z", "engine": "0"})

    assert _without_created_values(page.page().decode()) == _without_created_values(real)


def _without_created_values(page: str) -> list[str]:
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in page.splitlines()]


def test_several_processes_write_the_sum_first_and_no_creation_times() -> None:
    page = PageWriter(style=Style.PYTHON_MULTIPROCESS)
    page.histogram("wait", "W.", Histogram((1.0,)), {})
    page.counter("n_total", "N.", 2)

    assert page.page().decode().splitlines() == [
        "# HELP wait W.",
        "# TYPE wait histogram",
        "wait_sum 0.0",
        'wait_bucket{le="1.0"} 0.0',
        'wait_bucket{le="+Inf"} 0.0',
        "wait_count 0.0",
        "# HELP n_total N.",
        "# TYPE n_total counter",
        "n_total 2.0",
    ]


def test_a_bound_stands_in_the_order_of_the_alphabet_whatever_the_values_hold() -> None:
    page = PageWriter(style=Style.OTHER, number=plain_number)
    page.histogram("w", "W.", Histogram((1.0,)), {"a": 'x",le="9', "z": "1"})

    assert 'w_bucket{a="x\\",le=\\"9",le="1",z="1"} 0' in page.page().decode().splitlines()


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(0.5)
    histogram.observe(0.6, times=3)

    assert histogram.counts == [0, 1, 3, 0]
    assert histogram.total == pytest.approx(2.3)


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (0.31175, "0.31175"), (9214770.0, "9214770")])
def test_plain_numbers_have_no_point_when_they_are_whole(value: float, text: str) -> None:
    assert plain_number(value) == text


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (9214770.0, "9.21477e+06"), (771.4231, "771.423")])
def test_a_stream_of_doubles_has_six_digits(value: float, text: str) -> None:
    assert six_digits(value) == text


def test_a_board_observes_each_family_by_its_own_measure() -> None:
    board = HistogramBoard(
        [
            HistogramFamily(name="a", text="A.", bounds=(10.0,), value=lambda t: t.prompt_tokens),
            HistogramFamily(
                name="b", text="B.", bounds=(1.0,), value=lambda t: t.per_token_s, weight=lambda t: t.output_tokens - 1
            ),
        ]
    )

    board.observe(
        JobTimes(
            prompt_tokens=5, cached_tokens=0, output_tokens=11, preemptions=0, queue_s=0, first_token_s=1, prefill_s=1,
            decode_s=5, total_s=6,
        )
    )  # fmt: skip

    (_, first), (_, second) = board.histograms
    assert (first.counts, first.total) == ([1, 0], 5)
    assert (second.counts, second.total) == ([10, 0], 5)


def test_an_empty_page_is_empty() -> None:
    assert PageWriter(style=Style.OTHER).page() == b""
