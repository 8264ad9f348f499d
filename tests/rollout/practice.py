"""What an operator does, or leaves undone, about the end of a model server; and how long everything takes in a rollout."""

from collections.abc import Collection
from dataclasses import dataclass, replace

HOOK, FIRST_SIGHT, GOOD_FLAGS = "hook", "first-sight", "good-flags"
PARTS = (HOOK, FIRST_SIGHT, GOOD_FLAGS)


@dataclass(frozen=True, slots=True)
class Practice:
    """The parts that together lose nothing.

    Attributes:
        hook: `epp drain` runs as preStop hook.
        first_sight: The picker learns that a pod is to go when that is decided: from the pod's deletion mark, and from the
            hook's call. Without it, it learns from the pod's absence, and the hook, if there is one, asks the engine only.
        good_flags: The engine's own time limits and the grace period are longer than the longest request.
    """

    hook: bool = True
    first_sight: bool = True
    good_flags: bool = True

    @classmethod
    def without(cls, parts: Collection[str]) -> "Practice":
        """All of `PARTS` but these."""
        return cls(hook=HOOK not in parts, first_sight=FIRST_SIGHT not in parts, good_flags=GOOD_FLAGS not in parts)

    @property
    def complete(self) -> bool:
        """Whether nothing is left out."""
        return self == Practice()

    def __str__(self) -> str:
        kept = (self.hook, self.first_sight, self.good_flags)
        missing = [part for part, is_kept in zip(PARTS, kept, strict=True) if not is_kept]
        if len(missing) == len(PARTS):
            return "without all three"
        return "with all three" if not missing else f"without {' and '.join(missing)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times and sizes of a rollout. In production most are longer; what counts is which is longer than which.

    Attributes:
        pods: Size of the pool.
        rate_per_s: Requests a second.
        longest_s: How long the longest answer takes.
        shorter_s: How long the others take at most; the shortest takes 0.2 s.
        in_flight_s: How much of an answer each pod still has before it when it is told to end.
        largest_prompt_bytes: Size of the largest prompt; the smallest has 500 bytes.
        notice_s: From a change of a pod to the picker's sight of it.
        min_wait_s: The hook's.
        max_wait_s: The hook's: long enough for the longest answer on the slowest machine.
        short_max_wait_s: The same without first sight, where the engine does not get idle.
        grace_s: The pod's, when it has room for the hook and the longest answer.
        short_grace_s: The pod's, when it has not, as are 30 s where answers take minutes.
    """

    pods: int = 3
    rate_per_s: float = 8.0
    longest_s: float = 20.0
    shorter_s: float = 3.0
    in_flight_s: float = 10.0
    largest_prompt_bytes: int = 200_000
    notice_s: float = 0.5
    min_wait_s: float = 2.0
    max_wait_s: float = 240.0
    short_max_wait_s: float = 8.0
    grace_s: float = 400.0
    short_grace_s: float = 2.0

    def grace_for(self, practice: Practice) -> float:
        """The pod's grace period: without a hook it has room for the longest answer."""
        if not practice.good_flags:
            return self.short_grace_s
        return self.grace_s if practice.hook else 1.5 * self.longest_s

    def max_wait_for(self, practice: Practice) -> float:
        """The longest that the hook waits."""
        return self.max_wait_s if practice.first_sight else self.short_max_wait_s


FULL = Pace()
QUICK = replace(FULL, rate_per_s=6.0, longest_s=6.0, shorter_s=2.0, in_flight_s=4.0, notice_s=0.2, min_wait_s=1.0)
"""For tests: under half a minute on an idle machine. A begun answer outlives the short grace period here, too."""
