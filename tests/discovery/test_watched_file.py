import os
from pathlib import Path

import pytest

from epp.discovery.watched_file import TIMESTAMP_GRANULARITY_S, FileLook, WatchedFile
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(b"one")
    return path


def keep_times(path: Path, content: bytes) -> None:
    """Write in place with the times of before, as a write within the granularity of timestamps leaves them."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_first_look_gives_the_content_and_the_next_nothing(path: Path, clock: FakeClock) -> None:
    file = WatchedFile(path, clock)

    assert file.look() == FileLook(b"one")
    assert file.look() is None


def test_an_edit_in_place_is_seen(path: Path, clock: FakeClock) -> None:
    file = WatchedFile(path, clock)
    file.look()
    clock.advance(60)

    path.write_bytes(b"two")
    later_ns = path.stat().st_mtime_ns + 60_000_000_000  # the clock of a filesystem may tick only every few milliseconds
    os.utime(path, ns=(later_ns, later_ns))

    assert file.look() == FileLook(b"two")
    assert file.look() is None


def test_an_atomic_rename_is_seen(path: Path, clock: FakeClock) -> None:
    file = WatchedFile(path, clock)
    file.look()
    clock.advance(60)

    (path.parent / "new").write_bytes(b"two")
    (path.parent / "new").rename(path)

    assert file.look() == FileLook(b"two")


def test_a_turned_link_of_a_config_map_is_seen(tmp_path: Path, clock: FakeClock) -> None:
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "endpoints.yaml").write_text(version)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "endpoints.yaml").symlink_to("..data/endpoints.yaml")
    file = WatchedFile(tmp_path / "endpoints.yaml", clock)
    assert file.look() == FileLook(b"1")
    clock.advance(60)

    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    assert file.look() == FileLook(b"2")


def test_a_second_edit_that_leaves_size_and_times_equal_is_seen(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WatchedFile(path, clock)
    file.look()
    frozen = path.stat()
    monkeypatch.setattr("epp.discovery.watched_file.os.fstat", lambda _: frozen)

    keep_times(path, b"two")
    clock.advance(TIMESTAMP_GRANULARITY_S / 2)

    assert file.look() == FileLook(b"two")


def test_the_content_is_not_read_again_once_timestamps_can_be_trusted(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = WatchedFile(path, clock)
    file.look()
    frozen = path.stat()
    monkeypatch.setattr("epp.discovery.watched_file.os.fstat", lambda _: frozen)
    keep_times(path, b"two")

    clock.advance(TIMESTAMP_GRANULARITY_S)

    assert file.look() is None


def test_a_touched_file_with_the_same_content_is_nothing_new(path: Path, clock: FakeClock) -> None:
    file = WatchedFile(path, clock)
    file.look()

    os.utime(path)

    assert file.look() is None


def test_a_missing_file_is_told_once_and_coming_back_is_new_even_with_the_same_content(path: Path, clock: FakeClock) -> None:
    file = WatchedFile(path, clock)
    file.look()

    path.unlink()

    assert file.look() == FileLook(problem="expected a readable file, found: No such file or directory")
    assert file.look() is None
    path.write_bytes(b"one")
    assert file.look() == FileLook(b"one")


def test_a_folder_a_pipe_and_too_long_a_file_are_refused_without_blocking(tmp_path: Path, clock: FakeClock) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"12345")

    assert WatchedFile(tmp_path, clock).look() in (
        FileLook(problem="expected a readable file, found: Is a directory"),
        FileLook(problem="expected a regular file, found another kind"),
    )
    assert WatchedFile(tmp_path / "pipe", clock).look() == FileLook(problem="expected a regular file, found another kind")
    assert WatchedFile(tmp_path / "long", clock, max_bytes=4).look() == FileLook(problem="expected at most 4 bytes, found more")
    assert WatchedFile(tmp_path / "long", clock, max_bytes=5).look() == FileLook(b"12345")
