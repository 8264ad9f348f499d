"""The control plane that tests share, and a cluster in it for each."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import START_S, RealCluster
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.programs import get_all

EPP_USER = "epp-user"
"""A user of the shared control plane who may do nothing until a test gives them a role in its namespace."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test, if one will want it, build what takes minutes: a test has two, and each that asks would wait."""
    here = Path(__file__).parent
    if session.config.option.collectonly or not any(
        item.path.is_relative_to(here) and item.get_closest_marker("flow") for item in session.items
    ):
        return
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")  # none in the processes of pytest-xdist
    get_all(terminal.write_line if terminal is not None else lambda line: None)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One for all tests, started for the first that wants it. Who kills or pauses it starts an own one (`RealCluster()`)."""
    shared = ControlPlane({EPP_USER: []})
    try:
        shared.start()
        end_s = time.monotonic() + START_S
        while not shared.is_ready():
            assert time.monotonic() < end_s, f"expected kube-apiserver to serve within {START_S:g} s; {shared.log_tails()}"
            time.sleep(0.05)
        yield shared
    finally:
        shared.stop()


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[RealCluster]:
    """A new namespace in the shared control plane."""
    async with RealCluster(control_plane) as real:
        yield real
