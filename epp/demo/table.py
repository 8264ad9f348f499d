"""Tables for a terminal."""

from collections.abc import Sequence

_GAP = "  "


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> list[str]:
    """Lines with columns in line: the first `text_columns` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def seconds(value_s: float | None) -> str:
    """A duration with the unit that suits it: `38 us`, `2.4 ms`, `57 ms`, `1.20 s`; `-` for None."""
    if value_s is None:
        return "-"
    for limit_s, factor, form, unit in ((1e-3, 1e6, ".0f", "us"), (1e-2, 1e3, ".1f", "ms"), (1.0, 1e3, ".0f", "ms")):
        if value_s < limit_s:
            return f"{value_s * factor:{form}} {unit}"
    return f"{value_s:.2f} s"


def percent(part: int, whole: int) -> str:
    """`12.3 %`; `-` of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
