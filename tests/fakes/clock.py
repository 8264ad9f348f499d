"""A clock for tests."""


class FakeClock:
    """A clock that stands still until a test moves it.

    Attributes:
        now_s: What `monotonic_s` says; `wall_s` says 1,700,000,000 more.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1_700_000_000.0 + self.now_s

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (≥ 0)."""
        self.now_s += seconds
