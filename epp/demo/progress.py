"""What is seen while the demo runs: events as they happen, and the state of the pool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epp.demo.table import render_table, seconds

BAR_REQUESTS = 24
"""Length of the longest bar, in requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """One server now.

    Attributes:
        state: Such as `ready`, `draining`, `down`.
        in_flight: As the picker counts.
        answered: Requests answered so far.
        p50_s: Their median duration.
    """

    name: str
    engine: str
    state: str
    in_flight: int
    answered: int
    p50_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The demo now.

    Attributes:
        at_s: Since the start of the demo.
        finished_per_s: Requests that ended in the last second.
        open_requests: As the client counts.
    """

    at_s: float
    servers: Sequence[ServerLine]
    finished_per_s: float
    open_requests: int
    answered: int
    failed: int


class Screen(Protocol):
    """Where progress goes.

    Attributes:
        every_s: How often it wants a snapshot.
    """

    every_s: float

    def say(self, at_s: float, text: str) -> None:
        """Something happened."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """How it stands."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class PlainScreen:
    """One line for each event and each snapshot, for files and pipes."""

    every_s = 1.0

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` takes text with its line ends."""
        self._write = write

    def say(self, at_s: float, text: str) -> None:
        """One line."""
        self._write(event_line(at_s, text) + "\n")

    def show(self, snapshot: Snapshot) -> None:
        """One line."""
        self._write(snapshot_line(snapshot) + "\n")

    def close(self) -> None:
        """Nothing to do."""


class LiveScreen:
    """A table that is drawn over itself, with the events above it, for terminals."""

    every_s = 0.5

    def __init__(self, write: Callable[[str], None], columns: Callable[[], int]) -> None:
        """`columns` is the width of the terminal now."""
        self._write = write
        self._columns = columns
        self._drawn: list[str] = []

    def say(self, at_s: float, text: str) -> None:
        """The line goes above the table."""
        self._draw(self._drawn, above=event_line(at_s, text))

    def show(self, snapshot: Snapshot) -> None:
        """The table is drawn anew."""
        self._draw(snapshot_table(snapshot))

    def close(self) -> None:
        """The table goes: the report takes its place."""
        self._draw([])

    def _draw(self, lines: list[str], above: str | None = None) -> None:
        # A line that wraps would count as two when it is drawn over.
        cut = [line[: self._columns() - 1] for line in lines]
        erase = f"\x1b[{len(self._drawn)}F\x1b[J" if self._drawn else ""
        event = "" if above is None else above + "\n"
        self._write(erase + event + "".join(line + "\n" for line in cut))
        self._drawn = cut


def event_line(at_s: float, text: str) -> str:
    """An event."""
    return f"{at_s:5.1f} s  {text}"


def snapshot_line(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    servers = ", ".join(_short(server) for server in snapshot.servers)
    return event_line(
        snapshot.at_s,
        f"{snapshot.finished_per_s:3.0f}/s  {snapshot.open_requests:3d} open ({servers})  "
        f"{snapshot.answered} answered, {snapshot.failed} failed",
    )


def snapshot_table(snapshot: Snapshot) -> list[str]:
    """A snapshot in lines."""
    rows = [
        (s.name, s.engine, s.state, str(s.in_flight), str(s.answered), seconds(s.p50_s), _bar(s.in_flight))
        for s in snapshot.servers
    ]
    table = render_table(("server", "engine", "state", "in flight", "answered", "p50", " "), rows, text_columns=3)
    total = (
        f"{snapshot.at_s:5.1f} s   {snapshot.finished_per_s:.0f} requests/s   {snapshot.open_requests} open   "
        f"{snapshot.answered} answered   {snapshot.failed} failed"
    )
    return ["", *table, "", total]


def _short(server: ServerLine) -> str:
    words = [server.name]
    if server.in_flight or server.state == "ready":
        words.append(str(server.in_flight))
    if server.state != "ready":
        words.append(server.state)
    return " ".join(words)


def _bar(in_flight: int) -> str:
    return ("#" * min(in_flight, BAR_REQUESTS)).ljust(BAR_REQUESTS)
