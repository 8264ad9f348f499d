"""Text columns."""

from collections.abc import Iterable, Sequence

from tests.bench.results import Figure


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Each row as a line, every column but the last as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def figure_lines(figures: Iterable[Figure]) -> list[str]:
    """The table of a result."""
    verdicts = {True: "met", False: "not met", None: ""}
    rows = [(f.name, f.shown, f.goal, verdicts[f.met], f.detail) for f in figures]
    return columns([("figure", "measured", "goal", "", "detail"), *rows])
