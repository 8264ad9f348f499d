"""The processes behind the control plane end when they should, and say why when they should not have."""

import sys
from pathlib import Path

import pytest

from tests.kubernetes.server_process import ServerProcess, unused_port


def test_a_process_that_ended_by_itself_is_told_with_what_it_wrote(tmp_path: Path) -> None:
    process = ServerProcess("a server", [sys.executable, "-c", "import sys; sys.exit('no etcd')"], tmp_path / "log")
    process.start()
    try:
        with pytest.raises(AssertionError, match="expected a server to run, found exit code 1; a server wrote: no etcd"):
            check_until_dead(process)
    finally:
        process.kill()


def test_a_paused_process_is_killed_all_the_same_and_may_start_again(tmp_path: Path) -> None:
    process = ServerProcess("a server", ["/bin/sleep", "60"], tmp_path / "log")
    for _ in range(2):
        process.start()
        pid = process.pid
        process.pause()
        process.kill()
        assert not Path(f"/proc/{pid}").exists()
    process.kill()  # does nothing


def test_ports_are_not_those_of_outgoing_connections() -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert 1024 < unused_port() < first_ephemeral


def test_no_port_is_given_twice() -> None:
    """Whoever got it may not have bound it yet."""
    ports = [unused_port() for _ in range(200)]

    assert len(set(ports)) == 200


def check_until_dead(process: ServerProcess) -> None:
    while True:  # ends by the error, or by the timeout of all tests
        process.check_alive()
