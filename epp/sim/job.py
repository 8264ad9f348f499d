"""One sequence in the engine: what it needs, how far it is, and when things happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class JobPhase(Enum):
    """Where a job stands."""

    NEW = "new"
    WAITING = "waiting"
    """In the queue, before its first run or after a preemption."""
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Job:
    """One prompt with one answer. The engine model writes it; others read it.

    Attributes:
        prompt_tokens: Length of the prompt, ≥ 1.
        output_tokens: Length of the answer, 0 for an embedding.
        hashes: A hash for each full block of prompt and answer together, each covering all before it; empty when
            prefixes are not to be reused.
        lora: The adapter it needs, or None.
        length_limited: Whether its answer ends because the request allows no more.
        cached_tokens: Prompt tokens found in the KV cache when it was first started.
        slot: The lowest free slot number at its start, or None while it does not run.
        kept_tokens: Answer tokens that were ready before the last preemption.
        preemptions: How often it lost its blocks.
        decode_from_s: When the first token of the present run is (or will be) ready.
    """

    __slots__ = (
        "cached_tokens", "decode_from_s", "finished_at_s", "first_token_at_s", "hashes", "held_hashes", "held_plain",
        "kept_tokens", "length_limited", "lora", "output_tokens", "phase", "preemptions", "prompt_tokens", "run",
        "slot", "started_at_s", "submitted_at_s", "uncached_tokens",
    )  # fmt: skip

    def __init__(
        self,
        *,
        prompt_tokens: int,
        output_tokens: int,
        hashes: Sequence[int] = (),
        lora: str | None = None,
        length_limited: bool = False,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.hashes = hashes
        self.lora = lora
        self.length_limited = length_limited
        self.phase = JobPhase.NEW
        self.cached_tokens = 0
        self.uncached_tokens = prompt_tokens
        self.slot: int | None = None
        self.kept_tokens = 0
        self.preemptions = 0
        self.run = 0
        self.held_hashes: list[int] = []
        self.held_plain = 0
        self.submitted_at_s = 0.0
        self.started_at_s: float | None = None
        self.decode_from_s = 0.0
        self.first_token_at_s: float | None = None
        self.finished_at_s: float | None = None

    @property
    def held_blocks(self) -> int:
        """KV blocks it holds now."""
        return len(self.held_hashes) + self.held_plain

    def ready_tokens(self, now_s: float, tokens_per_s: float) -> int:
        """Answer tokens ready at `now_s`: the first at the end of the prefill, then one every 1/`tokens_per_s`."""
        if self.phase is JobPhase.FINISHED:
            return self.output_tokens
        if self.phase is not JobPhase.DECODE or now_s < self.decode_from_s:
            return self.kept_tokens
        fresh = 1 + int((now_s - self.decode_from_s) * tokens_per_s + 1e-6)
        return min(self.output_tokens, self.kept_tokens + fresh)

    def times(self) -> "JobTimes":
        """How long the phases of a finished job took."""
        assert self.started_at_s is not None
        assert self.first_token_at_s is not None
        assert self.finished_at_s is not None
        return JobTimes(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            preemptions=self.preemptions,
            queue_s=self.started_at_s - self.submitted_at_s,
            first_token_s=self.first_token_at_s - self.submitted_at_s,
            prefill_s=self.first_token_at_s - self.started_at_s,
            decode_s=self.finished_at_s - self.first_token_at_s,
            total_s=self.finished_at_s - self.submitted_at_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """What histograms want to know of a finished job.

    Attributes:
        queue_s: From arrival to the first start.
        first_token_s: From arrival to the first token.
        prefill_s: From the first start to the first token.
        decode_s: From the first to the last token.
        total_s: From arrival to the end.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    queue_s: float
    first_token_s: float
    prefill_s: float
    decode_s: float
    total_s: float

    @property
    def per_token_s(self) -> float:
        """Mean pause between two tokens; 0 for fewer than two."""
        return self.decode_s / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0
