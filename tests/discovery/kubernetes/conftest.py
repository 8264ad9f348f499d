"""A fake API server, and a reflector that follows its pods."""

from collections.abc import AsyncIterator

import pytest

from tests.discovery.kubernetes.following import Following, following
from tests.fakes.kube_api import FakeKubeApi, kube_api
from tests.fakes.kube_objects import pod


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeApi]:
    async with kube_api() as running:
        yield running


@pytest.fixture
async def follows(api: FakeKubeApi) -> AsyncIterator[Following]:
    """Two pods, listed and watched."""
    api.put_pod(pod("a"))
    api.put_pod(pod("b"))
    async with following(api) as running:
        await running.converges()
        await api.watched()
        yield running
