"""From series to numbers: which values are believed, which series are added up."""

import pytest

from epp.scrape.engines.page import Fault
from epp.scrape.engines.quantity import Rule, label_of, read_number, value_of
from epp.scrape.exposition import SampleFinder


def number(page: str, rule: Rule = Rule.COUNT, *, label: str | None = None) -> float | None:
    return number_and_faults(page, rule, label=label)[0]


def number_and_faults(page: str, rule: Rule, *, label: str | None = None) -> tuple[float | None, list[Fault]]:
    faults: list[Fault] = []
    series = SampleFinder(["g"]).find(page.encode()).families
    return read_number(value_of("g") if label is None else label_of("g", label), rule, series, faults.append), faults


def test_a_missing_metric_is_unknown_and_not_zero() -> None:
    for rule in Rule:
        assert number_and_faults("h 1\n", rule) == (None, [])


def test_engines_of_one_endpoint_are_summed() -> None:
    """Field report 37: a page with engine 0 waiting 0 and engine 1 waiting 25 has 25 waiting."""
    assert number('g{engine="0"} 0\ng{engine="1"} 25\n') == 25


def test_models_of_one_endpoint_are_summed() -> None:
    assert number('g{model_name="a"} 3\ng{model_name="b"} 4\n') == 7


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank", "pid", "attn_cp_rank"])
def test_ranks_that_repeat_each_other_are_not_summed(label: str) -> None:
    assert number(f'g{{{label}="0"}} 7\ng{{{label}="1"}} 7\ng{{{label}="2"}} 6\n') == 7


def test_data_parallel_ranks_are_summed_over_the_highest_of_their_tensor_parallel_ranks() -> None:
    first = 'g{dp_rank="0",tp_rank="0"} 5\ng{dp_rank="0",tp_rank="1"} 5\n'
    second = 'g{tp_rank="2",dp_rank="1"} 2\ng{dp_rank="1",tp_rank="3"} 2\n'

    assert number(first + second) == 7


def test_the_total_of_all_priorities_is_not_added_to_its_parts() -> None:
    page = 'g{dp_rank="0",priority=""} 31\ng{dp_rank="0",priority="0"} 21\ng{dp_rank="0",priority="10"} 10\n'
    other = 'g{dp_rank="1",priority=""} 20\ng{dp_rank="1",priority="0"} 14\n'

    assert number(page + other) == 51


def test_priorities_without_a_total_are_summed() -> None:
    assert number('g{priority="0"} 21\ng{priority="10"} 10\n') == 31


def test_an_old_process_does_not_hide_a_living_one() -> None:
    assert number('g{pid="273"} 0.42\ng{pid="275"} 0\n', Rule.RATIO) == 0.42


def test_the_fullest_cache_counts() -> None:
    assert number('g{engine="0"} 0.2\ng{engine="1"} 0.9\n', Rule.RATIO) == 0.9


def test_a_series_that_stands_there_twice_counts_once() -> None:
    assert number('g{engine="0"} 4\ng{engine="0"} 5\n') == 5


@pytest.mark.parametrize(
    ("text", "rule", "expected", "fault"),
    [
        ("NaN", Rule.COUNT, None, Fault.NOT_A_NUMBER),
        ("+Inf", Rule.COUNT, None, Fault.NOT_A_NUMBER),
        ("-1", Rule.COUNT, None, Fault.NEGATIVE),
        ("1e12", Rule.COUNT, None, Fault.OUT_OF_RANGE),
        ("NaN", Rule.RATIO, None, Fault.NOT_A_NUMBER),
        ("-Inf", Rule.RATIO, None, Fault.NOT_A_NUMBER),
        ("-1", Rule.RATIO, None, Fault.NEGATIVE),
        ("-0.3875", Rule.RATIO, None, Fault.NEGATIVE),
        ("1.0003", Rule.RATIO, 1.0, Fault.OUT_OF_RANGE),
        ("41.8", Rule.RATIO, None, Fault.OUT_OF_RANGE),
        ("-16", Rule.EACH, None, Fault.NEGATIVE),
        ("1e300", Rule.TOTAL, None, Fault.OUT_OF_RANGE),
    ],
)
def test_a_value_that_cannot_be_right_is_left_out_and_told(text: str, rule: Rule, expected: float | None, fault: Fault) -> None:
    assert number_and_faults(f"g {text}\n", rule) == (expected, [fault])


@pytest.mark.parametrize("rule", [Rule.COUNT, Rule.RATIO])
def test_zero_is_a_value(rule: Rule) -> None:
    assert number_and_faults("g 0\n", rule) == (0.0, [])
    assert number_and_faults("g -0.0\n", rule) == (0.0, [])


def test_a_size_of_zero_is_not_known_yet() -> None:
    assert number_and_faults("g 0\n", Rule.EACH) == (None, [])
    assert number_and_faults('g{engine="0"} 0\ng{engine="1"} 5\n', Rule.TOTAL) == (5.0, [])


def test_a_bad_series_does_not_take_the_good_ones_with_it() -> None:
    assert number_and_faults('g{engine="0"} NaN\ng{engine="1"} 25\n', Rule.COUNT) == (25.0, [Fault.NOT_A_NUMBER])
    assert number_and_faults('g{engine="0"} NaN\ng{engine="1"} -2\n', Rule.COUNT)[0] is None


def test_the_next_alternative_is_read_when_one_is_missing_or_wrong() -> None:
    """Field report 38: old and new names both work."""
    series = SampleFinder(["new", "old"]).find

    def usage(page: bytes) -> float | None:
        return read_number(value_of("new", "old"), Rule.RATIO, series(page).families, lambda _: None)

    assert usage(b"old 0.3\n") == 0.3
    assert usage(b"new 0.5\nold 0.3\n") == 0.5
    assert usage(b"new NaN\nold 0.3\n") == 0.3
    assert usage(b"other 1\n") is None


def test_the_terms_of_a_sum_need_not_all_be_there() -> None:
    find = SampleFinder(["a", "b"]).find
    both = value_of(("a", "b"))

    assert read_number(both, Rule.COUNT, find(b"a 2\nb 3\n").families, lambda _: None) == 5
    assert read_number(both, Rule.COUNT, find(b"b 3\n").families, lambda _: None) == 3


def test_a_selector_leaves_out_the_series_of_other_labels() -> None:
    series = (
        SampleFinder(["g"])
        .find(b'g{state="waiting",tenant="a"} 2\ng{state="waiting",tenant="t-1"} 4\ng{state="running"} 8\n')
        .families
    )

    assert read_number(value_of('g{state="waiting",tenant!~"t-.*"}'), Rule.COUNT, series, lambda _: None) == 2
    assert read_number(value_of('g{state="waiting"}'), Rule.COUNT, series, lambda _: None) == 6
    assert read_number(value_of('g{state="other"}'), Rule.COUNT, series, lambda _: None) is None


@pytest.mark.parametrize(
    ("text", "expected"), [("27216", 27216), ("None", None), ("", None), ("nan", None), ("-1", None), ("16.0", 16)]
)
def test_numbers_in_labels_are_read_when_they_are_numbers(text: str, expected: float | None) -> None:
    assert number(f'g{{blocks="{text}"}} 1\n', Rule.TOTAL, label="blocks") == expected
    assert number("g 1\n", Rule.TOTAL, label="blocks") is None


def test_an_info_family_is_summed_over_engines_and_over_nothing_else() -> None:
    page = 'g{blocks="10",engine="0",x="a"} 1\ng{blocks="10",engine="0",x="b"} 1\ng{blocks="12",engine="1"} 1\n'

    assert number(page, Rule.TOTAL, label="blocks") == 22
