"""A Deployment is rolled whose pods are in a real API server: deletion marks, and hooks that call with the admin token."""

import pytest

from tests.kubernetes.cluster import RealCluster
from tests.rollout.hooks import SCRIPT
from tests.rollout.practice import QUICK, Practice
from tests.rollout.scene import roll_once

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


async def test_a_rollout_of_pods_in_kubernetes_loses_and_cuts_nothing(cluster: RealCluster) -> None:
    """Field report 1."""
    rollout = await roll_once("vllm", Practice(), QUICK, hook_kind=SCRIPT, cluster=cluster)

    assert rollout.tally.failed == 0, str(rollout)
    assert rollout.errors == []
    assert [end.hook_exit_code for end in rollout.ends.values()] == [0] * QUICK.pods
    assert not any(end.killed for end in rollout.ends.values())
