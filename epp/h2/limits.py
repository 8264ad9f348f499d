"""What a peer may ask of a connection, and counting what it does ask."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from epp.h2.frames import DEFAULT_WINDOW_BYTES, MAX_WINDOW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection.

    Attributes:
        max_concurrent_streams: Told to the peer; a stream beyond it is refused (and safe to try elsewhere).
        max_header_list_bytes: Names, values and 32 bytes each, over one header block.
        max_header_block_bytes: Compressed, over HEADERS and its CONTINUATIONs; no encoder makes a block longer than its list.
        max_message_bytes: One gRPC message; a longer one ends the call with RESOURCE_EXHAUSTED.
        stream_window_bytes: How much of a stream the peer may send before it is taken over; 65,535 to 2^31−1, since
            the peer may use the protocol's default until it has read our SETTINGS.
        connection_window_bytes: Likewise of all streams; more than 65,535, for it cannot be made smaller.
        pending_high_bytes: While a stream holds more unsent bytes than this, its own input is not taken on.
        control_burst: Frames that cost us work and the peer nothing (SETTINGS, PING, empty DATA, resets of unanswered
            streams, …) which may come at once; `control_per_second` more each second. Beyond it the connection ends
            with ENHANCE_YOUR_CALM.
    """

    max_concurrent_streams: int = 10_000
    max_header_list_bytes: int = 65_536
    max_header_block_bytes: int = 65_536
    max_message_bytes: int = 128 << 20
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    pending_high_bytes: int = 1 << 20
    control_burst: int = 2_000
    control_per_second: float = 1_000.0

    def __post_init__(self) -> None:
        if not DEFAULT_WINDOW_BYTES <= self.stream_window_bytes <= MAX_WINDOW_BYTES:
            raise ValueError(f"stream_window_bytes: expected 65535 to 2147483647, found {self.stream_window_bytes}")
        if not DEFAULT_WINDOW_BYTES < self.connection_window_bytes <= MAX_WINDOW_BYTES:
            raise ValueError(f"connection_window_bytes: expected 65536 to 2147483647, found {self.connection_window_bytes}")


class Allowance:
    """A bucket of tokens: so many at once, so many more each second."""

    __slots__ = ("_burst", "_left", "_per_second", "_seen_at_s")

    def __init__(self, burst: int, per_second: float, now_s: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._seen_at_s = now_s

    def take(self, now_s: float, tokens: int = 1) -> bool:
        """Use so many tokens if there are as many."""
        self._left = min(self._burst, self._left + (now_s - self._seen_at_s) * self._per_second)
        self._seen_at_s = now_s
        if self._left < tokens:
            return False
        self._left -= tokens
        return True


class Account(Protocol):
    """Counts bytes that are held, against a limit of everybody's."""

    def take(self, size_bytes: int) -> bool:
        """Reserve so many bytes if they fit."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """End a reservation, or a part of it."""
        ...


class Unlimited:
    """An account that everything fits into."""

    def take(self, size_bytes: int) -> bool:
        return True

    def give_back(self, size_bytes: int) -> None:
        """Nothing was counted."""


@dataclass(slots=True)
class Tally:
    """How often limits were hit, over all connections of a server; by a short word for each."""

    hits: Counter[str] = field(default_factory=Counter)
