"""Programs that tests run."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

GO_TOOLS = Path(sysconfig.get_path("scripts")).parent / "tools"
"""Where programs of Go are kept once they are built: in the virtual environment, so that `make clean` removes them."""
_BUILD_S = 300


def require_tool(name: str) -> Path:
    """Where a program is: beside the Python that runs the tests, or on the PATH.

    Without it the test is skipped on a developer's machine and fails in continuous integration (`CI=true`), where a
    skipped test would go unnoticed.
    """
    found = _find(name)
    if found is None:
        _do_without(f"{name}: expected on the PATH, not found")
    return found


def require_go_tool(name: str, package: str, folder: Path = GO_TOOLS) -> Path:
    """Where a program of Go is: as `require_tool` finds it, or in `folder`, where it is built when `go` is there.

    Args:
        package: With version, as `go install` takes it.
    """
    found = _find(name) or _find(name, folder)
    if found is not None:
        return found
    go = _find("go")
    if go is None:
        _do_without(f"{name}: expected on the PATH, or go to build it with; found neither")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as building:
        built = subprocess.run(
            [go, "install", package],
            env=os.environ | {"GOBIN": building},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BUILD_S,
            text=True,
            check=False,
        )
        program = Path(building) / name
        if built.returncode != 0 or not program.exists():
            _do_without(
                f"{name}: expected go install {package} to build it, found: {built.stderr.strip()[-500:] or 'no program'}"
            )
        return program.replace(folder / name)  # at once, for tests in other processes may build it, too


def _find(name: str, folder: Path | None = None) -> Path | None:
    if folder is not None:
        found = shutil.which(name, path=str(folder))
    else:
        found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return None if found is None else Path(found)


def _do_without(sentence: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(f"{sentence} (a failure in continuous integration)")
