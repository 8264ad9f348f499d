"""Scenes that several flow tests start from."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.upstream import Upstream
from tests.flows.harness import start_upstreams


@pytest.fixture
async def upstreams() -> AsyncIterator[list[Upstream]]:
    """Three model servers."""
    async with start_upstreams(3) as servers:
        yield servers
