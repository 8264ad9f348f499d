"""Ollama: no metrics. `/api/ps` says which models are loaded; the load is what the endpoint picker counts itself."""

from typing import Any

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.json_page import JsonPage, decode
from epp.scrape.engines.page import Discarded, PageError, PageFormat, Source

LOADED_MODELS_CHANGE_S = 1.0
"""Loading a model takes seconds, so more than one look a second is wasted."""


def _is_process_list(value: Any) -> bool:
    return isinstance(value, dict) and "models" in value and isinstance(value["models"], (list, type(None)))


def _read_process_list(page: bytes, _discarded: Discarded) -> EndpointMetrics:
    value = decode(page)
    if not _is_process_list(value):
        raise PageError("garbage", 'expected an object with "models"')
    names = [model.get("name") or model.get("model") for model in value["models"] or () if isinstance(model, dict)]
    return EndpointMetrics(models=frozenset(name for name in names if isinstance(name, str) and name))


OLLAMA = Engine(
    name="ollama",
    sources=(Source(path="/api/ps", format=PageFormat.JSON, min_interval_s=LOADED_MODELS_CHANGE_S),),
    json=JsonPage(is_ours=_is_process_list, read=_read_process_list),
)
