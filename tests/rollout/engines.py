"""What a rollout has to know of each engine: its readiness probe, and the flags that give its requests time, or do not."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManners:
    """One engine, as an operator deploys it.

    Attributes:
        probe: Path of the readiness probe.
        good_flags: Flags of `epp sim` that give running requests time after SIGTERM, as the engine's own flags would.
        bad_flags: The opposite; mostly that is the engine's default, scaled as everything here.
        metrics_path: Where the metrics page is; None where there is none.
    """

    probe: str = "/health"
    good_flags: tuple[str, ...] = ()
    bad_flags: tuple[str, ...] = ()
    metrics_path: str | None = "/metrics"


_TIME, _NO_TIME = ("--shutdown-timeout", "60s"), ("--shutdown-timeout", "0s")

MANNERS: Mapping[str, EngineManners] = {
    "vllm": EngineManners(good_flags=_TIME, bad_flags=_NO_TIME),
    # It looks every 5 s whether it is idle, and has no limit of its own: the grace period is the limit.
    "sglang": EngineManners(good_flags=("--sigterm-watchdog", "1s"), bad_flags=("--sigterm-watchdog", "5s")),
    "trtllm-serve": EngineManners(metrics_path="/prometheus/metrics"),
    "triton-tensorrt-llm": EngineManners(
        probe="/v2/health/ready", good_flags=("--exit-timeout", "60s"), bad_flags=("--exit-timeout", "1s")
    ),
    "llamacpp": EngineManners(),
    "tgi": EngineManners(good_flags=("--graceful-timeout", "60s"), bad_flags=("--graceful-timeout", "1s")),
    "ollama": EngineManners(probe="/api/tags", metrics_path=None),
    "lmdeploy": EngineManners(),
    "nim": EngineManners(probe="/v1/health/ready", metrics_path="/v1/metrics", good_flags=_TIME, bad_flags=_NO_TIME),
}
"""By the names of `epp sim --engine`."""
