"""TensorRT-LLM's own server, `trtllm-serve`.

`/prometheus/metrics` needs `return_perf_metrics: true`; its gauges are absent until the first request has finished, and
stand still while requests run. `/metrics` is JSON and needs `enable_iter_perf_stats: true`: an array with a row for each
step since the last read, which is gone once it has been read.
"""

from typing import Any

import msgspec

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.json_page import JsonPage, decode, excerpt, highest, number, total, whole
from epp.scrape.engines.page import Discarded, PageError, PageFormat, PageUnchangedError, Source
from epp.scrape.engines.quantity import Rule, Term, value_of
from epp.scrape.selector import Selector

_rows = msgspec.json.Decoder(list[msgspec.Raw])


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and (not value or (isinstance(value[-1], dict) and "numActiveRequests" in value[-1]))


def _read_steps(page: bytes, discarded: Discarded) -> EndpointMetrics:
    """The last row of each attention rank; rows are in the order of the steps, so the last ones are looked at first."""
    try:
        rows = _rows.decode(page)
    except (msgspec.DecodeError, RecursionError):
        decode(page)  # an empty page and broken JSON have errors of their own
        raise PageError("garbage", f"expected an array of steps, found {excerpt(page)}") from None
    if not rows:
        raise PageUnchangedError
    ranks = _last_of_each_rank(rows)
    if not any("numActiveRequests" in row for row in ranks):
        raise PageError("garbage", 'expected rows with "numActiveRequests"')
    caches = [cache for row in ranks if isinstance(cache := row.get("kvCacheStats"), dict)]
    return EndpointMetrics(
        waiting_requests=total([number(row.get("numQueuedRequests"), Rule.COUNT, discarded) for row in ranks]),
        running_requests=total([number(row.get("numActiveRequests"), Rule.COUNT, discarded) for row in ranks]),
        kv_cache_usage_ratio=highest([_usage(cache, discarded) for cache in caches]),
        kv_cache_blocks=whole(total([number(cache.get("maxNumBlocks"), Rule.TOTAL, discarded) for cache in caches])),
        kv_cache_block_tokens=whole(highest([number(cache.get("tokensPerBlock"), Rule.EACH, discarded) for cache in caches])),
        max_running_requests=whole(total([number(row.get("maxNumActiveRequests"), Rule.TOTAL, discarded) for row in ranks])),
    )


def _last_of_each_rank(rows: list[msgspec.Raw]) -> list[dict[str, Any]]:
    """The newest row of each `attentionDpRank`; the very last row where there are no ranks."""
    newest: dict[int, dict[str, Any]] = {}
    for raw in reversed(rows):
        row = decode(bytes(raw))
        if not isinstance(row, dict):
            continue
        rank = row.get("attentionDpRank")
        if not isinstance(rank, int):
            return list(newest.values()) or [row]
        if rank in newest:
            break  # a whole step further back
        newest[rank] = row
    return list(newest.values())


def _usage(cache: dict[str, Any], discarded: Discarded) -> float | None:
    used = number(cache.get("usedNumBlocks"), Rule.COUNT, discarded)
    blocks = number(cache.get("maxNumBlocks"), Rule.TOTAL, discarded)
    return None if used is None or blocks is None else number(used / blocks, Rule.RATIO, discarded)


TRTLLM_SERVE = Engine(
    name="trtllm-serve",
    aliases=("trtllm", "tensorrt-llm"),
    sources=(
        Source(path="/prometheus/metrics"),
        Source(path="/metrics", format=PageFormat.JSON, destructive=True),
    ),
    recognise=(b"trtllm_",),
    exposition=ExpositionPage(
        waiting=value_of("trtllm_num_requests_waiting"),
        running=value_of("trtllm_num_requests_running"),
        kv_usage=value_of("trtllm_kv_cache_utilization"),
        kv_blocks=value_of("trtllm_kv_cache_max_blocks"),
        kv_block_tokens=value_of("trtllm_kv_cache_tokens_per_block"),
        kv_used_of=(
            Term(selector=Selector(name="trtllm_kv_cache_used_blocks")),
            Term(selector=Selector(name="trtllm_kv_cache_max_blocks")),
        ),
        max_running=value_of("trtllm_max_num_active_requests", "trtllm_max_batch_size_runtime"),
        may_be_empty=True,
    ),
    json=JsonPage(is_ours=_is_steps, read=_read_steps),
)
