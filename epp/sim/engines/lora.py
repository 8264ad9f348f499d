"""vLLM's way of telling which LoRA adapters are in use: a series for each combination, the newest value is the truth."""

from epp.sim.engine_state import EngineState
from epp.sim.exposition import PageWriter, labels

MAX_COMBINATIONS = 64
"""Combinations kept; the oldest goes first. (vLLM keeps them all.)"""


class LoraCombinations:
    """Combinations of running and waiting adapters that were ever seen, with the time of the last sight."""

    def __init__(self, max_lora: int) -> None:
        self._max_lora = max_lora
        self._seen_wall_s: dict[tuple[str, str], float] = {("", ""): 0.0}

    def write(self, page: PageWriter, state: EngineState, wall_s: float) -> None:
        """Note the present combination and add the family `vllm:lora_requests_info` to `page`."""
        present = ",".join(state.running_lora), ",".join(state.waiting_lora)
        self._seen_wall_s.pop(present, None)
        self._seen_wall_s[present] = wall_s
        if len(self._seen_wall_s) > MAX_COMBINATIONS:
            del self._seen_wall_s[next(iter(self._seen_wall_s))]
        samples = [
            (
                labels(max_lora=str(self._max_lora), running_lora_adapters=running, waiting_lora_adapters=waiting),
                seen_wall_s,
            )
            for (running, waiting), seen_wall_s in self._seen_wall_s.items()
            if seen_wall_s
        ]
        page.family("vllm:lora_requests_info", "gauge", "Running stats on lora requests.", samples)
