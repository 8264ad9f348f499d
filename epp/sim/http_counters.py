"""How many HTTP requests came, are open, and were answered how."""

from collections import Counter

MAX_PATHS = 64
"""Paths that get a counter of their own; clients may ask for anything."""


class HttpCounters:
    """Counts by path and method.

    Attributes:
        requests: (path, method) → requests that came.
        active: (path, method) → requests not answered yet.
        responses: (path, method, status) → answers.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.active: Counter[tuple[str, str]] = Counter()
        self.responses: Counter[tuple[str, str, int]] = Counter()

    def begin(self, path: str, method: str) -> tuple[str, str]:
        """Count a request that came; what is returned goes to `end`."""
        key = (path, method)
        if key not in self.requests and len(self.requests) >= MAX_PATHS:
            key = ("other", method)
        self.requests[key] += 1
        self.active[key] += 1
        return key

    def end(self, key: tuple[str, str], status: int | None) -> None:
        """Count its end; None is an answer that never came."""
        self.active[key] -= 1
        if status is not None:
            self.responses[(*key, status)] += 1
