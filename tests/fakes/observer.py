"""A telemetry that only remembers."""

from collections import Counter

from epp.telemetry.outcome import RequestOutcome


class SilentLog:
    """A log that nobody reads."""

    def debug(self, event: str, **fields: object) -> None:
        """Nothing happens."""


class CountingObserver:
    """Counts what it hears; keeps the outcomes."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.outcomes: list[RequestOutcome] = []

    def picked(self, duration_s: float, endpoint_name: str, address: str, model: str) -> None:
        self.counts["picked"] += 1

    def not_picked(self, duration_s: float, code: str, model: str) -> None:
        self.counts[f"not picked: {code}"] += 1

    def request_began(self, outcome: RequestOutcome) -> None:
        self.counts["began"] += 1

    def request_ended(self, outcome: RequestOutcome) -> None:
        self.counts["ended"] += 1
        self.outcomes.append(outcome)

    def served_elsewhere(self) -> None:
        self.counts["served elsewhere"] += 1

    def body_read(self, duration_s: float) -> None:
        self.counts["body read"] += 1

    def body_not_inspected(self, reason: str) -> None:
        self.counts[f"not inspected: {reason}"] += 1

    def model_rewritten(self, rewrite_name: str, model: str, target_model: str) -> None:
        self.counts[f"rewritten by {rewrite_name}: {model} to {target_model}"] += 1
