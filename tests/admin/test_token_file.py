"""The admin token's file."""

import os
from pathlib import Path

import pytest

from epp.admin.token_file import TokenFile
from epp.errors import ConfigError


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))


def write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def test_the_token_is_what_stands_there_without_white_space_around(tmp_path: Path) -> None:
    token = TokenFile(str(write(tmp_path / "token", b"\n  s3cret\r\n")), Log())
    assert token.matches(b"s3cret")
    assert not token.matches(b"s3cre")
    assert not token.matches(b"")


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\nb", b"\xff\xfe", b"a\0b", b"x" * 4097])
def test_what_is_no_token_is_refused_without_being_shown(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^--admin-token-file: expected ") as refused:
        TokenFile(str(write(tmp_path / "token", content)), Log())
    assert "two words" not in str(refused.value)
    assert "xxx" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a readable file"):
        TokenFile(str(tmp_path / "none"), Log())
    with pytest.raises(ConfigError, match="expected a regular file"):
        TokenFile(str(tmp_path), Log())
    with pytest.raises(ConfigError, match="expected a readable file"):
        TokenFile("a\0b", Log())


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="expected a regular file"):
        TokenFile(str(tmp_path / "pipe"), Log())


def test_a_rotated_token_is_in_force_at_once(tmp_path: Path) -> None:
    """As a Secret is: the name points somewhere else."""
    write(tmp_path / "1", b"old")
    write(tmp_path / "2", b"new")
    (tmp_path / "token").symlink_to("1")
    token = TokenFile(str(tmp_path / "token"), Log())
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").replace(tmp_path / "token")
    assert token.matches(b"new")
    assert not token.matches(b"old")


def test_a_file_that_breaks_leaves_the_last_token_with_one_line(tmp_path: Path) -> None:
    file, log = write(tmp_path / "token", b"s3cret"), Log()
    token = TokenFile(str(file), log)
    file.unlink()
    os.mkfifo(file)
    assert token.matches(b"s3cret")
    assert token.matches(b"s3cret")
    assert [event for event, _ in log.told] == ["the admin token stays as it was"]
    assert "s3cret" not in str(log.told)
    file.unlink()
    write(file, b"again")
    assert token.matches(b"again")
