"""Programs that tests run."""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest


def require_tool(name: str) -> Path:
    """Where a program is: beside the Python that runs the tests, or on the PATH.

    Without it the test is skipped on a developer's machine and fails in continuous integration (`CI=true`), where a
    skipped test would go unnoticed.
    """
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is not None:
        return Path(found)
    sentence = f"{name}: expected on the PATH, not found"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(f"{sentence} (a failure in continuous integration)")
