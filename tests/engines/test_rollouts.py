"""Rollouts of real model servers: with the hook nothing is lost, without it something is."""

import click
import pytest

from tests.engines.rollouts import roll_real
from tests.engines.servers import LLAMACPP, SHUTDOWN_TIMEOUT, VLLM_CPU, RealServer
from tests.rollout.hooks import KINDS
from tests.rollout.practice import FIRST_SIGHT, HOOK, Practice
from tests.rollout.scene import Rollout

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

WELL_SET = [
    pytest.param(LLAMACPP, id="llamacpp"),
    pytest.param(VLLM_CPU.with_flags(*SHUTDOWN_TIMEOUT), id="vllm"),
]
AS_IT_COMES = [pytest.param(LLAMACPP, id="llamacpp"), pytest.param(VLLM_CPU, id="vllm")]


def tell(rollout: Rollout, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = ", ".join(f"{end.hook_s:.1f} s{' killed' if end.killed else ''}" for end in rollout.ends.values())
    with capsys.disabled():
        click.echo(f"\n{rollout}; hooks took {hooks}")


@pytest.mark.parametrize("hook_kind", KINDS)
@pytest.mark.parametrize("server", WELL_SET)
async def test_a_rollout_with_the_hook_loses_and_cuts_nothing(
    server: RealServer, hook_kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = await roll_real(server, Practice(), hook_kind=hook_kind)
    tell(rollout, capsys)

    assert rollout.tally.failed == 0, str(rollout)
    assert rollout.tally.whole >= 8
    assert rollout.errors == []
    for end in rollout.ends.values():
        assert end.hook_exit_code == 0, end.hook_log
        assert not end.killed


@pytest.mark.parametrize("server", AS_IT_COMES)
async def test_the_same_without_the_hook_loses_requests(server: RealServer, capsys: pytest.CaptureFixture[str]) -> None:
    """At least the one that runs at each pod's end, although the picker is told at once that the pod is to go."""
    rollout = await roll_real(server, Practice.without([HOOK]))
    tell(rollout, capsys)

    assert rollout.tally.failed >= server.pace.pods, str(rollout)


async def test_without_hook_and_first_sight_vllm_loses_requests_in_spite_of_its_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is running ends whole, but what arrives is answered 500 until the picker has learnt that."""
    rollout = await roll_real(VLLM_CPU.with_flags(*SHUTDOWN_TIMEOUT), Practice.without([HOOK, FIRST_SIGHT]))
    tell(rollout, capsys)

    assert rollout.tally.failed >= 1, str(rollout)
