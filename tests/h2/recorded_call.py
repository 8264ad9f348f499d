"""Calls that write down what they see, and what they can do with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from epp.h2.stream import Stream


@dataclass(slots=True)
class RecordedCall:
    """A call that writes down what happens to it.

    Attributes:
        seen: Messages as bytes, everything else by name; `closed` or `cancelled` for its end.
        on_message: What it does with a message.
        on_half_closed: What it does when the peer sends no more.
    """

    stream: Stream
    metadata: Mapping[bytes, bytes]
    on_message: Callable[[Stream, bytes], None]
    on_half_closed: Callable[[Stream], None]
    seen: list[bytes | str] = field(default_factory=list)
    _ends: int = 0

    def message(self, message: bytes) -> None:
        self._note(message)
        self.on_message(self.stream, message)

    def half_closed(self) -> None:
        self._note("half_closed")
        self.on_half_closed(self.stream)

    def drained(self) -> None:
        self._note("drained")

    def closed(self, *, cancelled: bool) -> None:
        self._note("cancelled" if cancelled else "closed")
        self._ends += 1

    @property
    def ends(self) -> int:
        """How often it was told that it is over."""
        return self._ends

    def _note(self, what: bytes | str) -> None:
        assert not self._ends, f"{what!r} after the end of the call"
        self.seen.append(what)


def echo(stream: Stream, message: bytes) -> None:
    """Sends a message back."""
    stream.send(message)


def say_nothing(stream: Stream, message: bytes) -> None:
    """Takes a message."""


def finish(stream: Stream) -> None:
    """Ends the call with OK."""
    stream.finish()


def wait(stream: Stream) -> None:
    """Leaves the call open."""
