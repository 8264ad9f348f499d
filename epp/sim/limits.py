"""How large and fast an engine is, and the errors of what does not fit."""

from dataclasses import dataclass


class QueueFullError(Exception):
    """The job would have to wait, and the queue is as long as it may be."""


class ContextLengthError(Exception):
    """Prompt and answer can never fit.

    Attributes:
        needed_tokens: What they take together.
        limit_tokens: What there is.
    """

    def __init__(self, needed_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"expected at most {limit_tokens} tokens, found {needed_tokens}")
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How large and how fast the engine is.

    Attributes:
        slots: Jobs in execution at once.
        max_queue_requests: Jobs that may wait; None is no limit.
        prefill_tokens_per_s: Prompt tokens a second, for each job.
        decode_tokens_per_s: Answer tokens a second, for each job.
        kv_blocks: KV blocks that jobs can use.
        kv_block_tokens: Tokens in a block.
        max_lora: Different adapters in execution at once.
    """

    slots: int
    max_queue_requests: int | None
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    kv_blocks: int
    kv_block_tokens: int
    max_lora: int
