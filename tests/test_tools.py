"""A missing program is a skip at home and a failure in continuous integration."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tools import module_folder, require_go_program, require_go_tool, require_tool


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


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` on the PATH that installs `built-tool`, builds anything, downloads nothing, and writes down that it did."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        "for last; do :; done\n"  # go build … -o FILE
        'case "$1 $2" in\n'
        '  "install example.org/tool@v1") printf "#!/bin/sh\\n" > "$GOBIN/built-tool" && chmod 755 "$GOBIN/built-tool" ;;\n'
        '  "build -C") printf "#!/bin/sh\\n" > "$last" && chmod 755 "$last" ;;\n'
        '  *) echo "no such module" >&2; exit 1 ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "calls"


def test_a_go_tool_is_built_once(go: Path, tmp_path: Path) -> None:
    tools = tmp_path / "venv" / "tools"
    for _ in range(2):
        assert require_go_tool("built-tool", "example.org/tool@v1", tools) == tools / "built-tool"

    assert go.read_text() == "install example.org/tool@v1\n"
    assert list(tools.iterdir()) == [tools / "built-tool"]


def test_a_go_tool_on_the_path_is_not_built(go: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "there-already").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "there-already").chmod(0o755)

    assert require_go_tool("there-already", "example.org/tool@v1", tmp_path / "tools") == tmp_path / "bin" / "there-already"
    assert not go.exists()


def test_a_go_tool_that_cannot_be_built_skips_at_home_and_fails_in_continuous_integration(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"built-tool: expected go install .* to build it, found: no such module"):
        require_go_tool("built-tool", "example.org/other@v1", tmp_path / "tools")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such module"):
        require_go_tool("built-tool", "example.org/other@v1", tmp_path / "tools")


def test_without_go_a_go_tool_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="built-tool: expected on the PATH, or go to build it with; found neither"):
        require_go_tool("built-tool", "example.org/tool@v1", tmp_path / "tools")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "main.go").write_text("package main\n")
    return folder


def test_a_program_of_ours_is_built_once_though_several_ask_at_once(go: Path, module: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        programs = set(threads.map(lambda _: require_go_program("ours", module, tmp_path / "tools"), range(3)))

    assert len(go.read_text().splitlines()) == 1
    assert programs == set((tmp_path / "tools").iterdir())


def test_a_program_of_ours_is_built_anew_when_its_module_changes(go: Path, module: Path, tmp_path: Path) -> None:
    before = require_go_program("ours", module, tmp_path / "tools")
    (module / "main.go").write_text("package main // changed\n")

    after = require_go_program("ours", module, tmp_path / "tools")

    assert after != before
    assert list((tmp_path / "tools").iterdir()) == [after]  # they are large
    assert len(go.read_text().splitlines()) == 2


def test_a_program_of_ours_on_the_path_is_not_built(go: Path, module: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ours").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ours").chmod(0o755)

    assert require_go_program("ours", module, tmp_path / "tools") == tmp_path / "bin" / "ours"
    assert not go.exists()


def test_without_go_a_program_of_ours_is_missing(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="ours: expected on the PATH, or go to build it with; found neither"):
        require_go_program("ours", module, tmp_path / "tools")


def test_a_go_module_that_cannot_be_downloaded_is_missing(go: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"example.org/crds@v1: expected go mod download .*, found: no such module"):
        module_folder("example.org/crds@v1")
