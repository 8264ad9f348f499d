"""llama.cpp server.

`/metrics` answers 501 unless the server was started with `--metrics`; `/slots` is there unless it is switched off. Since May
2025 the metrics page says nothing of the KV cache. Both are answered between batches, and wake a server that sleeps.
"""

from typing import Any

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.json_page import JsonPage, decode, number, total
from epp.scrape.engines.page import Discarded, PageError, PageFormat, Source
from epp.scrape.engines.quantity import Rule, value_of


def _is_slots(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(slot, dict) and "is_processing" in slot for slot in value)


def _read_slots(page: bytes, discarded: Discarded) -> EndpointMetrics:
    """`/slots`: how many are at work. Each slot owns its part of the KV cache, so a busy slot's part counts as used."""
    value = decode(page)
    if not _is_slots(value):
        raise PageError("garbage", 'expected an array of slots with "is_processing"')
    slots = [slot for slot in value if isinstance(slot, dict) and isinstance(slot.get("is_processing"), bool)]
    busy = [slot for slot in slots if slot["is_processing"]]
    everything = total([number(slot.get("n_ctx"), Rule.TOTAL, discarded) for slot in slots])
    taken = total([number(slot.get("n_ctx"), Rule.TOTAL, discarded) for slot in busy]) or 0.0
    return EndpointMetrics(
        running_requests=float(len(busy)) if slots else None,
        kv_cache_usage_ratio=None if everything is None else taken / everything,
        max_running_requests=len(slots) or None,
    )


LLAMACPP = Engine(
    name="llamacpp",
    aliases=("llama.cpp", "llama-cpp", "llama_cpp", "llama-server"),
    sources=(Source(path="/metrics"), Source(path="/slots", format=PageFormat.JSON)),
    recognise=(b"llamacpp:",),
    exposition=ExpositionPage(
        waiting=value_of("llamacpp:requests_deferred"),
        running=value_of("llamacpp:requests_processing"),
        kv_usage=value_of("llamacpp:kv_cache_usage_ratio"),  # up to May 2025
    ),
    json=JsonPage(is_ours=_is_slots, read=_read_slots),
)
