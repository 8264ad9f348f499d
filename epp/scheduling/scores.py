"""Turning quantities into scores."""

from collections.abc import Sequence


def at_best_average(values: Sequence[float], unknown: Sequence[int]) -> list[float]:
    """Values of which the lowest is best, those at `unknown` at least the average of the others.

    What nobody knows may be good, but must not win. Where nothing is known the values stay as they are.
    """
    if not unknown or len(unknown) == len(values):
        return list(values)
    skip = set(unknown)
    known = [value for i, value in enumerate(values) if i not in skip]
    average = sum(known) / len(known)
    return [max(value, average) if i in skip else value for i, value in enumerate(values)]


def lowest_is_best(values: Sequence[float]) -> list[float]:
    """1.0 for the lowest value, 0.0 for the highest, linear between; 1.0 for all when all are equal."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    span = high - low
    return [(high - value) / span for value in values]
