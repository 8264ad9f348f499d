"""What one simulated model server is like."""

from dataclasses import dataclass, field, fields
from typing import Any

from epp.errors import ConfigError
from epp.sim.engines.names import ENGINE_SETTINGS


def _setting(default: Any, minimum: float | None = None) -> Any:
    return field(default=default, metadata={"minimum": minimum})


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Settings of a simulated model server; a wrong one raises `ConfigError`.

    Attributes:
        engine: Whose API, metrics, health and shutdown to imitate; one of `ENGINE_SETTINGS`.
        name: Sent as header `x-sim-name` with every answer; empty is engine-port.
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        metrics_port: Port of a second listener for the metrics page, which then leaves the first; None is the same port.
        metrics_path: Path of the metrics page; None is the engine's own.
        slots: Requests in execution at once.
        max_queue_requests: Requests that may wait; more are refused in the engine's manner. None is no limit.
        prefill_tokens_per_s: Prompt tokens a second of one request.
        decode_tokens_per_s: Answer tokens a second of one request.
        kv_blocks: Blocks of the KV cache, as the metrics page tells them.
        kv_block_tokens: Tokens in a block.
        prefix_caching: Whether a prompt's beginning that is still in the KV cache is used again.
        seed: Source of answers, their length, and ids.
        served_model_names: Names the model answers to; the first is in the metrics.
        lora_adapters: Adapters that can be asked for as models.
        max_lora: Different adapters in execution at once.
        output_tokens: Mean length of answers that the request does not limit.
        startup_delay_s: How long loading takes; what is answered meanwhile is the engine's manner.
        shutdown_timeout_s: vLLM and NIM: how long running requests may go on after SIGTERM; 0 aborts them at once.
        sigterm_watchdog_s: SGLang: how often it looks, after SIGTERM, whether it is idle.
        exit_timeout_s: Triton: how long kept connections are served after SIGTERM.
        graceful_timeout_s: TGI: how long running requests may go on after SIGTERM.
        metrics_enabled: Whether there is a metrics page.
        metrics_delay_s: Time to render the page. It blocks the event loop, streams included, as real pages do.
        metrics_refresh_s: How often the engine updates its gauges; 0 is always, None is the engine's own habit.
        old_metric_names: Use the names of an earlier version (vLLM 0.7, SGLang of early 2026, llama.cpp of April 2025).
        stream_interval_s: How often streams are written to; faster tokens leave together.
    """

    engine: str = "vllm"
    name: str = ""
    host: str = "127.0.0.1"
    port: int = _setting(0, 0)
    metrics_port: int | None = _setting(None, 0)
    metrics_path: str | None = None
    slots: int = _setting(8, 1)
    max_queue_requests: int | None = _setting(None, 0)
    prefill_tokens_per_s: float = _setting(8000.0, 1e-3)
    decode_tokens_per_s: float = _setting(50.0, 1e-3)
    kv_blocks: int = _setting(2048, 2)
    kv_block_tokens: int = _setting(16, 1)
    prefix_caching: bool = True
    seed: int = 0
    served_model_names: tuple[str, ...] = ("sim-model",)
    lora_adapters: tuple[str, ...] = ()
    max_lora: int = _setting(4, 1)
    output_tokens: int = _setting(64, 1)
    startup_delay_s: float = _setting(0.0, 0)
    shutdown_timeout_s: float = _setting(0.0, 0)
    sigterm_watchdog_s: float = _setting(5.0, 1e-3)
    exit_timeout_s: float = _setting(30.0, 0)
    graceful_timeout_s: float = _setting(90.0, 0)
    metrics_enabled: bool = True
    metrics_delay_s: float = _setting(0.0, 0)
    metrics_refresh_s: float | None = _setting(None, 0)
    old_metric_names: bool = False
    stream_interval_s: float = _setting(0.02, 1e-3)

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self._engine_problems()]
        if not self.served_model_names or "" in self.served_model_names:
            problems.append("served_model_names: expected at least one name, none empty")
        if self.metrics_path is not None and not self.metrics_path.startswith("/"):
            problems.append(f"metrics_path: expected a path that starts with /, found {self.metrics_path!r}")
        both = sorted(set(self.served_model_names) & set(self.lora_adapters))
        if both:
            problems.append(f"lora_adapters: expected names that no model has, found {', '.join(both)}")
        if problems:
            raise ConfigError(*problems)

    def _range_problems(self) -> list[str]:
        problems = []
        for one in fields(self):
            minimum, value = one.metadata.get("minimum"), getattr(self, one.name)
            if minimum is not None and value is not None and not minimum <= value < float("inf"):
                problems.append(f"{one.name}: expected a number of at least {minimum:g}, found {value!r}")
        for name in ("port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and value > 65535:
                problems.append(f"{name}: expected a port from 0 to 65535, found {value!r}")
        return problems

    def _engine_problems(self) -> list[str]:
        if self.engine not in ENGINE_SETTINGS:
            return [f"engine: expected one of {', '.join(ENGINE_SETTINGS)}, found {self.engine!r}"]
        problems = []
        special = {name for names in ENGINE_SETTINGS.values() for name in names}
        for one in fields(self):
            if one.name in special - ENGINE_SETTINGS[self.engine] and getattr(self, one.name) != one.default:
                allowed = ", ".join(engine for engine, names in ENGINE_SETTINGS.items() if one.name in names)
                problems.append(f"{one.name}: expected engine {allowed}, found {self.engine}")
        return problems

    @property
    def model_name(self) -> str:
        """The first name of the model."""
        return self.served_model_names[0]
