"""What is measured: the sizes of requests, how many, and the goals."""

import json
from dataclasses import dataclass

LOAD_ENDPOINTS = 8
MANY_ENDPOINTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """One kind of load.

    Attributes:
        name: As `--case` names it.
        body_bytes: Length of the chat request.
        requests: How many in one round.
        connections: How many at once.
        endpoints: Size of the pool.
        goal_ratio: The EPP's CPU time should be at most this part of Envoy's.
    """

    name: str
    body_bytes: int
    requests: int
    connections: int
    endpoints: int = LOAD_ENDPOINTS
    goal_ratio: float


LOAD_CASES = (
    LoadCase(name="small", body_bytes=500, requests=4000, connections=16, goal_ratio=0.45),
    LoadCase(name="16k", body_bytes=16_000, requests=2000, connections=16, goal_ratio=0.55),
    LoadCase(name="400k", body_bytes=400_000, requests=320, connections=8, goal_ratio=1.0),
    LoadCase(name="small-100", body_bytes=500, requests=4000, connections=16, endpoints=MANY_ENDPOINTS, goal_ratio=0.7),
)
IDLE, PARTS, KUBERNETES = "idle", "parts", "kubernetes"
CASE_NAMES = (*(case.name for case in LOAD_CASES), IDLE, KUBERNETES, PARTS)
DELETION_PODS = (20, 1000)
LIST_PODS = 3000

GOAL_IDLE_CORES = 0.25
GOAL_P99_MS = 10.0
"""Through Envoy at half of the highest rate, for the case `small`."""
GOAL_START_S = 1.0
GOAL_LIST_P99_MS = 50.0
"""Of picks while pods are listed; from the ext_proc message to the answer, without Envoy."""
GOAL_REST_MIB = 150.0
FLAT_RATIO = 1.05
"""Memory counts as flat when the last round ended with at most this much of what the first one ended with."""
GOAL_PICK_US = {10: 50.0, 1000: 1000.0}
"""By number of endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long to measure.

    Attributes:
        rounds: Each load case is run so often; CPU times are summed, other figures are medians.
        part: Of the requests of each case.
        idle_s: How long an idle EPP is watched.
        part_s: Time for each microbenchmark.
        deletions: Of pods, for each size of pool.
        lists: Of many pods.
    """

    rounds: int
    part: float
    idle_s: float
    part_s: float
    deletions: int
    lists: int


FULL = Scale(rounds=2, part=1.0, idle_s=15.0, part_s=1.0, deletions=100, lists=20)
QUICK = Scale(rounds=1, part=0.25, idle_s=5.0, part_s=0.2, deletions=20, lists=5)


def chat_body(size_bytes: int) -> bytes:
    """A chat request of exactly this length."""
    text = "You are a helpful assistant for the orders team. "
    messages = [{"role": "system", "content": text}, {"role": "user", "content": ""}]
    request = {"model": "m", "messages": messages, "max_tokens": 64}
    missing = size_bytes - len(json.dumps(request))
    messages[1]["content"] = (text * (missing // len(text) + 1))[:missing]
    return json.dumps(request).encode()
