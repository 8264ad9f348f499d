"""The kubelet's part: hook, SIGTERM after it, SIGKILL at the end of the grace period."""

import sys

import pytest

from tests.rollout.pod import Pod
from tests.rollout.scene import pod_arguments

pytestmark = pytest.mark.flow


def pod(engine: str = "tgi") -> Pod:
    return Pod("a", pod_arguments(engine), probe="/health")


async def test_the_hook_ends_before_the_server_is_told_to() -> None:
    """The server still answers when the hook does its last step."""
    async with pod() as server:
        await server.until_ready()
        ask = f"import urllib.request as r; print(r.urlopen({server.url + '/health'!r}).status)"
        end = await server.end(60.0, [sys.executable, "-c", ask])

        assert not server.running
    assert end.hook_exit_code == 0
    assert end.hook_log == "200\n"
    assert not end.killed


async def test_a_hook_that_fails_does_not_keep_the_server() -> None:
    async with pod() as server:
        end = await server.end(60.0, [sys.executable, "-c", "raise SystemExit(3)"])

        assert not server.running
    assert end.hook_exit_code == 3
    assert not end.killed


async def test_a_hook_that_takes_the_whole_grace_period_is_killed_and_the_server_told_to_end() -> None:
    async with pod() as server:
        end = await server.end(0.5, ["sleep", "600"])

        assert not server.running
    assert end.hook_exit_code is None
    assert end.hook_s >= 0.5


async def test_a_server_that_does_not_end_is_killed_at_the_end_of_the_grace_period() -> None:
    """SGLang looks only every 5 s whether it is idle; its grace period is over before."""
    server = Pod("a", [*pod_arguments("sglang", good_flags=False), "--sigterm-watchdog", "600s"], probe="/health")
    async with server:
        end = await server.end(0.1)

        assert not server.running
    assert end.killed
    assert end.hook_exit_code is None
