"""The table of the rollouts."""

from collections import Counter

from tests.rollout.practice import PARTS, Practice
from tests.rollout.report import fault_lines, table_lines
from tests.rollout.scene import Rollout
from tests.rollout.tally import Ending, Tally

NOTHING = Practice.without(PARTS)


def rollout(engine: str, practice: Practice, whole: int, lost: int = 0, cut: int = 0) -> Rollout:
    tally = Tally(Counter({Ending.WHOLE: whole}))
    for _ in range(lost):
        tally.add(Ending.LOST, "503 by Envoy")
    for _ in range(cut):
        tally.add(Ending.CUT, "no end mark")
    return Rollout(engine, practice, tally, {}, [])


def test_each_engine_has_a_line_and_each_practice_a_column() -> None:
    rollouts = [
        rollout("vllm", Practice(), 100),
        rollout("vllm", Practice(), 90, cut=1),
        rollout("tgi", Practice(), 80),
        rollout("vllm", NOTHING, 60, lost=2, cut=3),
    ]

    assert table_lines(rollouts) == [
        "lost or cut  with all three        without all three",
        "vllm         1 of 191, 2 rollouts  5 of 65",
        "tgi          0 of 80               -",
    ]


def test_what_was_seen_of_failed_requests_is_told_by_kind() -> None:
    rollouts = [rollout("tgi", Practice(), 80), rollout("vllm", NOTHING, 60, lost=2, cut=3)]

    assert fault_lines(rollouts) == [
        "vllm, without all three: 65 sent, 60 whole, 2 lost, 3 cut; 3 × cut: no end mark; 2 × lost: 503 by Envoy"
    ]
