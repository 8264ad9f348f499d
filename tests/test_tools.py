"""A missing program is a skip at home and a failure in continuous integration."""

import sys
from pathlib import Path

import pytest

from tests.tools import require_tool


def test_a_program_beside_python_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert require_tool("pytest").parent == Path(sys.executable).parent


def test_a_program_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "some-program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert require_tool("some-program") == program


def test_a_missing_program_skips_the_test_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"no-such-program: expected on the PATH, not found"):
        require_tool("no-such-program")


def test_a_missing_program_fails_the_test_in_continuous_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match=r"no-such-program: expected on the PATH, not found"):
        require_tool("no-such-program")
