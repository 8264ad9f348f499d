"""The engines, and the settings that only some of them have."""

ENGINE_SETTINGS: dict[str, frozenset[str]] = {
    "vllm": frozenset({"shutdown_timeout_s", "old_metric_names"}),
    "sglang": frozenset({"sigterm_watchdog_s", "old_metric_names"}),
    "trtllm-serve": frozenset(),
    "triton-tensorrt-llm": frozenset({"exit_timeout_s"}),
    "llamacpp": frozenset({"old_metric_names"}),
    "tgi": frozenset({"graceful_timeout_s"}),
    "ollama": frozenset(),
    "lmdeploy": frozenset(),
    "nim": frozenset({"shutdown_timeout_s"}),
}
"""Engine → names of `SimConfig` fields that it has beside the common ones."""
