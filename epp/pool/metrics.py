"""What one scrape of a model server said."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraState:
    """Adapters of one endpoint, as far as its metrics page tells.

    Attributes:
        active: Names of adapters with running requests.
        waiting: Names of adapters with waiting requests.
        max_adapters: How many adapters fit at once; None when the page does not say.
    """

    active: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    max_adapters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointMetrics:
    """What one scrape said. None means that the page does not give this quantity (unknown, never 0).

    Attributes:
        waiting_requests: Requests queued in the model server, ≥ 0, summed over its engines (data-parallel ranks).
        running_requests: Requests in execution, ≥ 0, summed likewise.
        kv_cache_usage_ratio: Used part of the KV cache, from 0.0 to 1.0; the highest of its engines.
        kv_cache_blocks: Size of the KV cache, in blocks.
        kv_cache_block_tokens: Tokens in one block.
        max_running_requests: How many requests the engine runs at once, where it tells.
        lora: Adapters; None when the page has no adapter family.
        models: Names of the models that are loaded, where the page tells; empty otherwise.
    """

    waiting_requests: float | None = None
    running_requests: float | None = None
    kv_cache_usage_ratio: float | None = None
    kv_cache_blocks: int | None = None
    kv_cache_block_tokens: int | None = None
    max_running_requests: int | None = None
    lora: LoraState | None = None
    models: frozenset[str] = frozenset()

    @property
    def has_load(self) -> bool:
        """Whether waiting or running requests are known, so that the endpoint can be ranked by its own word."""
        return self.waiting_requests is not None or self.running_requests is not None
