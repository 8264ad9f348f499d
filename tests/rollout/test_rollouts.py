"""Rollouts of every engine lose nothing with the hook; and the same rollouts without it show that these tests can fail."""

import asyncio
from collections.abc import Iterable

import pytest

from tests.rollout.engines import MANNERS
from tests.rollout.hooks import COMMAND, SCRIPT
from tests.rollout.practice import PARTS, QUICK, Practice
from tests.rollout.scene import Rollout, roll_once

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]

TRIOS = [("vllm", "trtllm-serve", "llamacpp"), ("sglang", "tgi", "ollama"), ("triton-tensorrt-llm", "nim", "lmdeploy")]
"""Three pools side by side: a rollout is mostly waiting."""


async def roll_all(plan: Iterable[tuple[str, Practice]], hook_kind: str = COMMAND) -> list[Rollout]:
    async with asyncio.TaskGroup() as group:
        rollouts = [group.create_task(roll_once(engine, practice, QUICK, hook_kind=hook_kind)) for engine, practice in plan]
    return [each.result() for each in rollouts]


def test_every_engine_is_rolled() -> None:
    assert {engine for trio in TRIOS for engine in trio} == set(MANNERS)


def check_nothing_lost(rollout: Rollout) -> None:
    assert rollout.tally.failed == 0, str(rollout)
    assert rollout.tally.whole >= 10
    assert rollout.errors == []
    assert len(rollout.ends) == QUICK.pods
    for end in rollout.ends.values():
        assert end.hook_exit_code == 0, end.hook_log
        assert not end.killed


@pytest.mark.parametrize(("engines", "hook_kind"), list(zip(TRIOS, [COMMAND, SCRIPT, COMMAND], strict=True)))
async def test_a_rollout_with_the_hook_loses_and_cuts_nothing(engines: tuple[str, ...], hook_kind: str) -> None:
    """Field reports 1, 14, 15, 17 and 46: every pod is told to end in the middle of an answer, which then ends whole."""
    for rollout in await roll_all([(engine, Practice()) for engine in engines], hook_kind):
        check_nothing_lost(rollout)


async def test_rollouts_without_the_hook_lose_requests_so_that_the_others_say_something() -> None:
    """At least one answer is being given at each pod's end. Each of these engines ends it in its own way: aborted, never
    finished, cut. For the last two no flag changes that."""
    bare, no_hook = Practice.without(PARTS), Practice.without(["hook"])
    plan = [("vllm", bare), ("llamacpp", bare), ("ollama", bare), ("llamacpp", no_hook), ("ollama", no_hook)]

    for rollout in await roll_all(plan):
        assert rollout.tally.failed >= QUICK.pods, str(rollout)
