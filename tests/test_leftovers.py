"""The check after the last test sees what it must see."""

import subprocess
import sys
import threading

from tests.leftovers import child_processes, lasting_threads


def test_a_child_process_is_seen_until_it_is_waited_for() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # a process that has just begun has no command line for a moment
        seen = child_processes()
    after = child_processes()

    assert "input()" in seen[child.pid]
    assert child.pid not in after


def test_a_thread_that_keeps_the_process_alive_is_seen_and_a_daemon_is_not() -> None:
    end = threading.Event()
    lasting = threading.Thread(target=end.wait, name="lasting")
    daemon = threading.Thread(target=end.wait, name="daemon", daemon=True)
    lasting.start()
    daemon.start()
    seen = set(lasting_threads().values())
    end.set()
    lasting.join()
    daemon.join()

    assert "lasting" in seen
    assert "daemon" not in seen
    assert "lasting" not in lasting_threads().values()
