"""Rollouts of every engine lose nothing with the hook; and the same rollouts without it show that these tests can fail."""

import asyncio

import pytest

from tests.rollout.engines import MANNERS
from tests.rollout.hooks import COMMAND, SCRIPT
from tests.rollout.practice import PARTS, QUICK, Practice
from tests.rollout.scene import Rollout, roll_once

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]

TRIOS = [("vllm", "trtllm-serve", "llamacpp"), ("sglang", "tgi", "ollama"), ("triton-tensorrt-llm", "nim", "lmdeploy")]
"""Three pools side by side: a rollout is mostly waiting."""


async def roll_all(engines: tuple[str, ...], practice: Practice, hook_kind: str = COMMAND) -> list[Rollout]:
    async with asyncio.TaskGroup() as group:
        rollouts = [group.create_task(roll_once(engine, practice, QUICK, hook_kind=hook_kind)) for engine in engines]
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
    for rollout in await roll_all(engines, Practice(), hook_kind):
        check_nothing_lost(rollout)


async def test_the_same_rollouts_without_hook_first_sight_and_good_flags_lose_requests() -> None:
    """Each of these ends requests in its own way: aborted, never answered, cut. At least one is running at each pod's end."""
    for rollout in await roll_all(("vllm", "llamacpp", "ollama"), Practice.without(PARTS)):
        assert rollout.tally.failed >= QUICK.pods, str(rollout)


async def test_good_flags_alone_do_not_replace_the_hook() -> None:
    """There is none for llama.cpp and Ollama: what runs at SIGTERM gets no further byte."""
    for rollout in await roll_all(("llamacpp", "ollama"), Practice.without(["hook"])):
        assert rollout.tally.cut >= QUICK.pods, str(rollout)
