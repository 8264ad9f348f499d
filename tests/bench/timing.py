"""Timing of single calls."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.bench.load import percentile

_MOST_CALLS = 200_000
_WARM_UP = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """How long one call of a part takes, in microseconds of wall time.

    Attributes:
        goal_us: Its median should be below this; None where nobody set a goal.
    """

    name: str
    median_us: float
    p99_us: float
    calls: int
    goal_us: float | None = None


def timed(
    name: str, call: Callable[[T], object], prepare: Callable[[], T], watch_s: float, goal_us: float | None = None
) -> PartCost:
    """Call again and again for `watch_s`, after a tenth of that to warm up; `prepare` makes the argument, off the clock."""
    took_ns: list[int] = []
    now_ns = time.perf_counter_ns
    gc.collect()
    for span_s in (watch_s * _WARM_UP, watch_s):
        took_ns.clear()
        ends_ns = now_ns() + int(span_s * 1e9)
        ended_ns = 0
        while ended_ns < ends_ns and len(took_ns) < _MOST_CALLS:
            argument = prepare()
            began_ns = now_ns()
            call(argument)
            ended_ns = now_ns()
            took_ns.append(ended_ns - began_ns)
    took_ns.sort()
    return PartCost(
        name=name,
        median_us=statistics.median(took_ns) / 1e3,
        p99_us=percentile(took_ns, 99) / 1e3,
        calls=len(took_ns),
        goal_us=goal_us,
    )
