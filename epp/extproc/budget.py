"""How many bytes of bodies may be held at once, over all sessions."""


class BufferBudget:
    """A count with a limit.

    Attributes:
        limit_bytes: `limits.maxBufferedBytes`.
        held_bytes: Held now, from 0 to `limit_bytes`.
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
