"""What all tests share."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.leftovers import child_processes, lasting_threads

# No example is judged by the clock: machines differ, and tests run side by side.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

FLOWS = Path(__file__).parent / "flows"


def _is_of_this_test(record: logging.LogRecord) -> bool:
    """False for what grpcio's one poller says of the closed loop of an earlier test."""
    return "PollerCompletionQueue" not in record.getMessage()


logging.getLogger("asyncio").addFilter(_is_of_this_test)


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything below tests/flows is a flow test, so that none can be forgotten."""
    for item in items:
        if item.path.is_relative_to(FLOWS):
            item.add_marker(pytest.mark.flow)


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> Iterator[None]:
    """After the last test there are no more processes and threads than before the first."""
    processes_before, threads_before = child_processes(), lasting_threads()
    yield
    processes = {pid: command for pid, command in child_processes().items() if pid not in processes_before}
    threads = {ident: name for ident, name in lasting_threads().items() if ident not in threads_before}
    assert not processes, f"tests left child processes behind: {processes}"
    assert not threads, f"tests left threads behind: {threads}"
