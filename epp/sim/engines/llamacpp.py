"""The server of llama.cpp, started with `--metrics`; with old names as of April 2025 (with KV gauges)."""

from collections.abc import Mapping
from typing import Any

from epp.sim.engine_state import SlotState
from epp.sim.engines.base import AtStop, Engine, Page, Reply, StopStyle, Traits, View, WhileLoading, json_reply
from epp.sim.exposition import PageWriter, Style, six_digits

BATCH_TOKENS = 2048
"""llama.cpp's `--batch-size`: what is computed before the next look at other tasks, a scrape among them."""


class Llamacpp(Engine):
    """`llama-server`."""

    traits = Traits(
        name="llamacpp",
        owned_by="llamacpp",
        while_loading=WhileLoading.ANSWERED,
        headers_at_first_token=True,
        metrics_wait_for_batch_tokens=BATCH_TOKENS,
    )

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.OTHER, number=six_digits)
        state = view.live
        counters = state.counters
        decode_s = counters.slot_busy_s - counters.prefill_s
        values: list[tuple[str, str, str, float]] = [
            ("counter", "prompt_tokens_total", "Number of prompt tokens processed.", counters.prompt_tokens),
            ("counter", "prompt_seconds_total", "Prompt process time", counters.prefill_s),
            (
                "counter",
                "tokens_predicted_total",
                "Number of generation tokens processed.",
                state.generated_tokens,
            ),
            ("counter", "tokens_predicted_seconds_total", "Predict process time", counters.decode_s),
            (
                "counter",
                "n_decode_total",
                "Total number of llama_decode() calls",
                int(counters.busy_s * self.config.decode_tokens_per_s),
            ),
        ]
        if not self.config.old_metric_names:
            text = "Largest observed n_tokens."
            values.append(("counter", "n_tokens_max", text, counters.longest_context_tokens))
        text = "Average number of busy slots per llama_decode() call"
        values += [
            ("counter", "n_busy_slots_per_decode", text, _ratio(counters.slot_busy_s, counters.busy_s)),
            (
                "gauge",
                "prompt_tokens_seconds",
                "Average prompt throughput in tokens/s.",
                _ratio(counters.prompt_tokens, counters.prefill_s),
            ),
            (
                "gauge",
                "predicted_tokens_seconds",
                "Average generation throughput in tokens/s.",
                _ratio(state.generated_tokens, decode_s),
            ),
        ]
        if self.config.old_metric_names:
            text = "KV-cache usage. 1 means 100 percent usage."
            values.append(("gauge", "kv_cache_usage_ratio", text, state.kv_usage_ratio))
            values.append(("gauge", "kv_cache_tokens", "KV-cache tokens.", state.context_tokens))
        values += [
            ("gauge", "requests_processing", "Number of requests processing.", state.running_requests),
            ("gauge", "requests_deferred", "Number of requests deferred.", state.waiting_requests),
        ]
        for kind, name, help_text, value in values:
            page.family(f"llamacpp:{name}", kind, help_text, [("", value)])
        started = {"Process-Start-Time-Unix": str(int(view.started_wall_s))}
        return Reply(body=page.page(), content_type="text/plain; version=0.0.4", headers=started)

    def metrics_disabled(self) -> Reply:
        message = "This server does not support metrics endpoint. Start it with `--metrics`"
        return self.error(501, message, "not_supported_error")

    def pages(self) -> Mapping[str, Page]:
        return {
            "/health": lambda _: json_reply({"status": "ok"}),
            "/v1/health": lambda _: json_reply({"status": "ok"}),
            "/slots": self._slots,
            "/props": self._props,
        }

    def _slots(self, view: View) -> Reply:
        state = view.live
        if view.query.get("fail_on_no_slot") and state.running_requests >= state.slot_count:
            return self.error(503, "no slot available", "unavailable_error")
        context = state.total_tokens // state.slot_count
        return json_reply([_slot(number, context, slot) for number, slot in enumerate(state.slots)])

    def _props(self, view: View) -> Reply:
        context = view.live.total_tokens // view.live.slot_count
        return json_reply(
            {
                "default_generation_settings": {"n_ctx": context},
                "total_slots": view.live.slot_count,
                "model_path": f"/models/{self.config.model_name}.gguf",
                "is_sleeping": False,
            }
        )

    def stop_style(self) -> StopStyle:
        return StopStyle(at_stop=AtStop.HANG, second_signal_exits=True)

    def loading_reply(self, path: str) -> Reply:
        return self.error(503, "Loading model", "unavailable_error")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return json_reply({"error": {"message": message, "type": kind, "code": status}}, status)

    def not_found(self) -> Reply:
        return self.error(404, "File Not Found", "not_found_error")

    def model_entry(self, name: str, created: int, *, parent: str | None) -> dict[str, Any]:
        tokens = self.config.kv_blocks * self.config.kv_block_tokens
        return {**super().model_entry(name, created, parent=parent), "meta": {"n_ctx_train": tokens}}


def _slot(number: int, context_tokens: int, slot: SlotState | None) -> dict[str, Any]:
    idle = {"id": number, "n_ctx": context_tokens, "speculative": False, "is_processing": slot is not None}
    if slot is None:
        return idle
    next_token = {"has_next_token": True, "has_new_line": False, "n_remain": -1, "n_decoded": slot.ready_tokens}
    return {**idle, "params": {"n_predict": -1, "stream": True}, "next_token": [next_token]}


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
