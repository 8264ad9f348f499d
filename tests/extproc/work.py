"""How much work something is, for tests that compare it with other work: no machine is too slow for those."""

import time
from collections.abc import Callable

RUNS = 5


def least_s(work: Callable[[], object]) -> float:
    """CPU time of this thread for the quickest of a few runs, so that neither other programs nor a garbage collection count."""
    needed_s = []
    for _ in range(RUNS):
        began_s = time.thread_time()
        work()
        needed_s.append(time.thread_time() - began_s)
    return min(needed_s)
