"""What can be seen of the engine at one moment."""

from dataclasses import dataclass, replace


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start; they only grow.

    Attributes:
        submitted_requests: Jobs taken in.
        finished_requests: Jobs that ran to their end.
        length_limited_requests: Those of them that the request's own limit ended.
        aborted_requests: Jobs taken out before their end.
        rejected_requests: Jobs refused because the queue was full.
        prompt_tokens: Tokens of prompts whose prefill is done, cached ones included.
        cached_tokens: Those of them that were found in the cache.
        generated_tokens: Tokens of answers that ended; those of running jobs are in `EngineState.generated_tokens`.
        looked_up_blocks: Prompt blocks asked of the prefix cache.
        reused_blocks: Those that were there.
        preemptions: Times a job lost its blocks.
        busy_s: Time with at least one job in execution.
        slot_busy_s: The same, summed over the jobs.
        prefill_s: Time of all prefills.
        decode_s: Time of all decodes that ended.
        longest_context_tokens: Largest prompt and answer together.
    """

    submitted_requests: int = 0
    finished_requests: int = 0
    length_limited_requests: int = 0
    aborted_requests: int = 0
    rejected_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    looked_up_blocks: int = 0
    reused_blocks: int = 0
    preemptions: int = 0
    busy_s: float = 0.0
    slot_busy_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    longest_context_tokens: int = 0

    def copy(self) -> "EngineCounters":
        """These numbers as they are now."""
        return replace(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A job in a slot.

    Attributes:
        prompt_tokens: Length of its prompt.
        ready_tokens: Answer tokens it has.
    """

    prompt_tokens: int
    ready_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """A picture of the engine.

    Attributes:
        at_s: When it was taken, on the clock that the model is driven by.
        slot_count: Jobs that can be in execution at once.
        running_requests: Jobs in execution, of which `prefilling_requests` have no token yet.
        waiting_requests: Jobs in the queue, of which `deferred_requests` wait for a LoRA adapter's place.
        context_tokens: Prompt and answer tokens of running jobs.
        prefilling_tokens: Uncached prompt tokens of the jobs in prefill.
        waiting_tokens: Prompt tokens of waiting jobs.
        used_blocks: KV blocks held, out of `total_blocks`.
        idle_blocks: Free blocks with reusable content.
        evicted_blocks: Blocks whose content was given up for new ones, since the start.
        block_tokens: Tokens in a block.
        generated_tokens: Answer tokens made since the start, those of running jobs included.
        running_lora: Adapters in use, sorted.
        waiting_lora: Adapters that waiting jobs need, sorted.
        slots: What is in each slot, None for an empty one.
    """

    at_s: float
    slot_count: int
    running_requests: int
    prefilling_requests: int
    waiting_requests: int
    deferred_requests: int
    context_tokens: int
    prefilling_tokens: int
    waiting_tokens: int
    used_blocks: int
    idle_blocks: int
    total_blocks: int
    evicted_blocks: int
    block_tokens: int
    generated_tokens: int
    running_lora: tuple[str, ...]
    waiting_lora: tuple[str, ...]
    slots: tuple[SlotState | None, ...]
    counters: EngineCounters

    @property
    def kv_usage_ratio(self) -> float:
        """Held part of the KV blocks, from 0.0 to 1.0."""
        return self.used_blocks / self.total_blocks

    @property
    def used_tokens(self) -> int:
        """Token places in held blocks."""
        return self.used_blocks * self.block_tokens

    @property
    def total_tokens(self) -> int:
        """Token places in all blocks."""
        return self.total_blocks * self.block_tokens
