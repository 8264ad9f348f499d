"""Tests of this folder run when the mark `engines` is asked for, and only then."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `-m engines` they are deselected."""
    if "engines" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("engines")]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
