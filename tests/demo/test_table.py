"""Tables for a terminal."""

import pytest

from epp.demo.table import percent, render_table, seconds


def test_text_is_in_line_to_the_left_and_numbers_to_the_right() -> None:
    assert render_table(("server", "n"), [("a", "5"), ("longer name", "1234")]) == [
        "server          n",
        "-----------  ----",
        "a               5",
        "longer name  1234",
    ]


def test_more_columns_can_be_text() -> None:
    assert render_table(("a", "b", "n"), [("x", "yy", "10")], text_columns=2) == ["a  b    n", "-  --  --", "x  yy  10"]


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "-"),
        (0.000038, "38 us"),
        (0.0024, "2.4 ms"),
        (0.0571, "57 ms"),
        (0.999, "999 ms"),
        (1.2, "1.20 s"),
        (12.0, "12.00 s"),
    ],
)
def test_durations_have_the_unit_that_suits_them(value_s: float | None, text: str) -> None:
    assert seconds(value_s) == text


def test_a_part_of_nothing_is_no_number() -> None:
    assert percent(1, 8) == "12.5 %"
    assert percent(0, 0) == "-"
