"""What a drain call leaves behind on an endpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMark:
    """Somebody asked that an endpoint gets nothing new. It belongs to one incarnation and goes when that leaves.

    Attributes:
        marked_at_s: When that was asked first, monotonic.
        ends_at_s: When it ends by itself, monotonic; None when it stays until it is lifted.
    """

    marked_at_s: float
    ends_at_s: float | None = None

    def ended(self, now_s: float) -> bool:
        """Whether its time is over."""
        return self.ends_at_s is not None and now_s >= self.ends_at_s

    def left_s(self, now_s: float) -> float | None:
        """Seconds until it ends by itself; None when it does not."""
        return None if self.ends_at_s is None else max(0.0, self.ends_at_s - now_s)

    def outlasts(self, other: "DrainMark") -> bool:
        """Whether it ends after `other` does."""
        return other.ends_at_s is not None and (self.ends_at_s is None or self.ends_at_s > other.ends_at_s)
