"""For tests that end requests to an API server half-way."""

from collections.abc import Iterator

import pytest

from tests.fakes.dropped_connections import collect_dropped_connections


@pytest.fixture(autouse=True)
def _no_connection_outlives_its_test() -> Iterator[None]:
    yield
    collect_dropped_connections()
