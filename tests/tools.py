"""Programs that tests run."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

GO_TOOLS = Path(sysconfig.get_path("scripts")).parent / "tools"
"""Where programs of Go are kept once they are built: in the virtual environment, so that `make clean` removes them."""
_GO_S = 1_500.0
"""A kube-apiserver takes 4 minutes on 2 idle cores and was seen to take 12 on busy ones."""
_BUILDING = "{building}"


def require_tool(name: str) -> Path:
    """Where a program is: beside the Python that runs the tests, or on the PATH.

    Without it the test is skipped on a developer's machine and fails in continuous integration (`CI=true`), where a
    skipped test would go unnoticed.
    """
    found = _find(name)
    if found is None:
        do_without(f"{name}: expected on the PATH, not found")
    return found


def require_go_tool(name: str, package: str, folder: Path = GO_TOOLS) -> Path:
    """Where a program of Go is: as `require_tool` finds it, or in `folder`, where it is built when `go` is there.

    Args:
        package: With version, as `go install` takes it.
    """
    found = _find(name) or _find(name, folder)
    if found is not None:
        return found
    return _built_once(folder / name, [_go_for(name), "install", package], {"GOBIN": _BUILDING})


def require_go_program(name: str, module: Path, folder: Path = GO_TOOLS, *, variables: Mapping[str, str] | None = None) -> Path:
    """A program of a Go module of ours, whose main package is in its root: as `require_tool` finds it, or built in `folder`.

    It is built anew when a file of the module changes: the digest of them all is part of the program's name.

    Args:
        variables: Values for string variables of its packages, by their full names.
    """
    found = _find(name)
    if found is not None:
        return found
    # Small and the same wherever it is built; go.sum in the module vouches for what it is built of.
    link = " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in (variables or {}).items())])
    flags = ("-trimpath", "-buildvcs=false", f"-ldflags={link}")
    digest = hashlib.sha256(b"".join([link.encode(), *(file.read_bytes() for file in sorted(module.iterdir()))]))
    program = folder / f"{name}-{digest.hexdigest()[:12]}"
    if program.exists():
        return program
    command = (_go_for(name), "build", "-C", module, *flags, "-o", f"{_BUILDING}/{program.name}")
    _built_once(program, command, {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"})
    for older in set(folder.glob(f"{name}-*")) - {program}:
        older.unlink(missing_ok=True)
    return program


def module_folder(module: str) -> Path:
    """Where the files of a published Go module are, which is downloaded once.

    Args:
        module: With version, as `go mod download` takes it.
    """
    with tempfile.TemporaryDirectory() as nowhere:  # no go.mod there has a say in it
        ran = _run([require_tool("go"), "mod", "download", "-json", module], {"GOFLAGS": "", "GOWORK": "off"}, nowhere)
    if ran.returncode != 0:
        do_without(f"{module}: expected go mod download to bring it, found: {(ran.stderr or ran.stdout).strip()[-500:]}")
    return Path(json.loads(ran.stdout)["Dir"])


def _go_for(name: str) -> Path:
    go = _find("go")
    if go is None:
        do_without(f"{name}: expected on the PATH, or go to build it with; found neither")
    return go


def _built_once(program: Path, command: Sequence[str | Path], environment: Mapping[str, str]) -> Path:
    """Run a command that writes `program` in the folder `_BUILDING`, unless another process has just done it."""
    folder = program.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if program.exists():
            return program
        with tempfile.TemporaryDirectory(dir=folder) as building:
            built = _run(
                [str(word).replace(_BUILDING, building) for word in command],
                {name: value.replace(_BUILDING, building) for name, value in environment.items()},
            )
            new = Path(building) / program.name
            if built.returncode != 0 or not new.exists():
                what = " ".join([Path(command[0]).name, *map(str, command[1:])])
                do_without(f"{program.name}: expected {what} to build it, found: {built.stderr.strip()[-500:] or 'no program'}")
            return new.replace(program)  # at once, for whoever looks without the lock


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run(
    command: Sequence[str | Path], environment: Mapping[str, str], folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GO_S,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no end within {_GO_S:g} s")


def _find(name: str, folder: Path | None = None) -> Path | None:
    if folder is not None:
        found = shutil.which(name, path=str(folder))
    else:
        found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return None if found is None else Path(found)


def do_without(sentence: str) -> NoReturn:
    """End the test for want of something: a skip, and in continuous integration (`CI=true`) a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(f"{sentence} (a failure in continuous integration)")
