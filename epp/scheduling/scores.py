"""Turning quantities into scores."""

from collections.abc import Sequence


def lowest_is_best(values: Sequence[float]) -> list[float]:
    """1.0 for the lowest value, 0.0 for the highest, linear between; 1.0 for all when all are equal."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    span = high - low
    return [(high - value) / span for value in values]
