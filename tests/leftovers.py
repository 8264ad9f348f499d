"""What a test run must not leave behind."""

import os
import threading
from pathlib import Path


def child_processes() -> dict[int, str]:
    """The children of this process by id, with their command lines; a zombie counts, for nobody waited for it.

    Where there is no /proc (not on Linux) it is empty.
    """
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The fields after the name, which is in parentheses and may hold anything: state, parent, …
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except OSError:  # ended while we looked
            continue
        if parent == os.getpid():
            children[int(entry.name)] = command or "(zombie)"
    return children


def lasting_threads() -> dict[int, str]:
    """The threads that keep the process alive, by id, with their names; the main thread is none of them."""
    return {
        thread.ident: thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon and thread.ident is not None
    }
