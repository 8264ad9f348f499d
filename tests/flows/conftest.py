"""Scenes that several flow tests start from."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream
from tests.flows.harness import start_upstreams

HANGS_AFTER_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real programs on a busy machine take their time; the limit is for what hangs."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))


@pytest.fixture
async def upstreams() -> AsyncIterator[list[Upstream]]:
    """Three model servers."""
    async with start_upstreams(3) as servers:
        yield servers
