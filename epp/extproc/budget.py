"""How many bytes of bodies may be held at once, over all sessions."""

LEAST_OVERDRAFT_BYTES = 64 << 20


class BufferBudget:
    """A count with a limit.

    Attributes:
        limit_bytes: `limits.maxBufferedBytes`.
        held_bytes: Held now: bodies take up to the limit, `Overdraft` goes beyond.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes` if they fit."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """End a reservation, or a part of it."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "gave back more than was taken"


class Overdraft:
    """The account of long messages that have come half: it goes beyond the limit of bodies, up to twice the limit.

    Where bodies fill the buffers, others must still pass by, and they pass in such messages. Envoy makes one of up to 1 MiB
    in the streamed modes, and of a whole body in BUFFERED; so a small limit is gone beyond by `LEAST_OVERDRAFT_BYTES`.
    """

    __slots__ = ("_budget", "_limit_bytes")

    def __init__(self, budget: BufferBudget) -> None:
        self._budget = budget
        self._limit_bytes = budget.limit_bytes + max(budget.limit_bytes, LEAST_OVERDRAFT_BYTES)

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes` if they fit."""
        budget = self._budget
        if budget.held_bytes + size_bytes > self._limit_bytes:
            return False
        budget.held_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """End a reservation, or a part of it."""
        self._budget.give_back(size_bytes)
