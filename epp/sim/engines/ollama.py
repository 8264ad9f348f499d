"""Ollama: no metrics; a model is loaded by its first request and given up five minutes after the last."""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from epp.sim.config import SimConfig
from epp.sim.engines.base import AtStop, Engine, Page, Reply, StopStyle, Traits, View, WhileLoading, json_reply

KEEP_ALIVE_S = 300.0
"""How long an unused model stays in memory."""
MODEL_BYTES = 6_654_289_920


class Ollama(Engine):
    """`ollama serve`."""

    traits = Traits(
        name="ollama",
        owned_by="library",
        metrics_paths=(),
        while_loading=WhileLoading.ANSWERED,
        checks_model=True,
        headers_at_first_token=True,
        loads_at_first_request=True,
    )

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._expires_wall_s = 0.0

    def used(self, wall_s: float) -> None:
        self._expires_wall_s = wall_s + KEEP_ALIVE_S

    def loaded(self, wall_s: float) -> bool:
        return wall_s < self._expires_wall_s

    def metrics(self, view: View) -> Reply:
        return self.not_found()

    def pages(self) -> Mapping[str, Page]:
        return {
            "/": lambda _: Reply(body=b"Ollama is running", content_type="text/plain; charset=utf-8"),
            "/api/version": lambda _: json_reply({"version": "0.13.0"}),
            "/api/tags": lambda view: json_reply({"models": [self._stored(name, view) for name in self._names()]}),
            "/api/ps": self._loaded_models,
        }

    def _names(self) -> tuple[str, ...]:
        return self.config.served_model_names + self.config.lora_adapters

    def _loaded_models(self, view: View) -> Reply:
        if not (self.loaded(view.wall_s) or view.live.running_requests):
            return json_reply({"models": []})
        loaded = {
            **self._described(self.config.model_name),
            "expires_at": _time(self._expires_wall_s),
            "size_vram": MODEL_BYTES,
            "context_length": view.live.total_tokens // view.live.slot_count,
        }
        return json_reply({"models": [loaded]})

    def _stored(self, name: str, view: View) -> dict[str, Any]:
        return {**self._described(name), "modified_at": _time(view.started_wall_s)}

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "model": name,
            "size": MODEL_BYTES,
            "digest": sha256(name.encode()).hexdigest(),
            "details": {
                "parent_model": "",
                "format": "gguf",
                "family": "llama",
                "families": ["llama"],
                "parameter_size": "8.0B",
                "quantization_level": "Q4_K_M",
            },
        }

    def stop_style(self) -> StopStyle:
        return StopStyle(at_stop=AtStop.CUT)

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return json_reply({"error": {"message": message, "type": "api_error", "param": None, "code": None}}, status)

    def queue_full(self) -> Reply:
        # Two spaces, as in the original.
        return self.error(503, "server busy, please try again.  maximum pending requests exceeded", "api_error")

    def unknown_model(self, model: str) -> Reply:
        return self.error(404, f"model '{model}' not found", "api_error")

    def not_found(self) -> Reply:
        return Reply(status=404, body=b"404 page not found", content_type="text/plain")


def _time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat().replace("+00:00", "Z")
