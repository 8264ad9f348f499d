"""The hook's lines, which must hold nothing up."""

import os
from pathlib import Path

from epp.drain.log import HookLog


def test_lines_are_added_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")

    log = HookLog(str(file))
    log.line("one\ntwo")
    log.close()

    assert file.read_text() == "before\nepp drain: one two\n"


def test_a_pipe_that_is_full_takes_nothing_and_holds_nothing_up(tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    log = HookLog(str(fifo))

    for number in range(20_000):
        log.line(f"line {number}")

    taken = os.read(reader, 1 << 20)
    assert taken.startswith(b"epp drain: line 0\n")
    assert taken.endswith(b"\n")
    assert b"line 19999" not in taken
    log.close()
    os.close(reader)


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    read, write = os.pipe()

    log = HookLog(str(fifo), stdout=write)
    log.line("instead")

    assert os.read(read, 100) == b"epp drain: instead\n"
    os.close(read)
    os.close(write)


def test_standard_output_that_is_full_takes_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, bytes(4096))
        except BlockingIOError:
            break
    os.set_blocking(write, True)

    HookLog(str(tmp_path), stdout=write).line("nobody reads this")  # a folder is no file to write

    assert b"nobody" not in os.read(read, 1 << 20)
    os.close(read)
    os.close(write)


def test_a_line_is_cut_before_a_pipe_would_cut_it(tmp_path: Path) -> None:
    log = HookLog(str(tmp_path / "log"))
    log.line("ä" * 10_000)
    log.close()

    assert len((tmp_path / "log").read_bytes()) < 4096
