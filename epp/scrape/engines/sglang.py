"""SGLang.

`/metrics` is off unless the server was started with `--enable-metrics`; `/v1/loads` is always there. Capacity stood in an
info family from February to May 2026 and has gauges of its own since. Series of tensor-parallel ranks repeat each other.
"""

from typing import Any

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.json_page import JsonPage, decode, highest, number, total, whole
from epp.scrape.engines.page import Discarded, PageError, PageFormat, Source
from epp.scrape.engines.quantity import Rule, label_of, value_of


def _is_loads(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("loads"), list)


def _read_loads(page: bytes, discarded: Discarded) -> EndpointMetrics:
    """`/v1/loads`: one entry for each data-parallel rank."""
    value = decode(page)
    if not _is_loads(value):
        raise PageError("garbage", 'expected an object with "loads"')
    ranks = {load.get("dp_rank"): load for load in value["loads"] if isinstance(load, dict) and _is_rank(load.get("dp_rank"))}

    def each(key: str, rule: Rule) -> list[float | None]:
        return [number(load.get(key), rule, discarded) for load in ranks.values()]

    return EndpointMetrics(
        waiting_requests=total(each("num_waiting_reqs", Rule.COUNT)),
        running_requests=total(each("num_running_reqs", Rule.COUNT)),
        kv_cache_usage_ratio=highest(each("token_usage", Rule.RATIO)),
        max_running_requests=whole(total(each("max_running_requests", Rule.TOTAL))),
    )


def _is_rank(value: Any) -> bool:
    return value is None or isinstance(value, int)


SGLANG = Engine(
    name="sglang",
    sources=(
        Source(path="/metrics"),
        Source(path="/v1/loads?include=core&format=json", format=PageFormat.JSON),
    ),
    recognise=(b"sglang:", b"sglang_"),
    exposition=ExpositionPage(
        # the underscore names: /v1/loads?format=prometheus
        waiting=value_of("sglang:num_queue_reqs", "sglang_num_waiting_reqs"),
        running=value_of("sglang:num_running_reqs", "sglang_num_running_reqs"),
        kv_usage=value_of("sglang:token_usage", "sglang_token_usage"),
        kv_blocks=value_of("sglang:num_pages") + label_of("sglang:cache_config_info", "num_pages"),
        kv_block_tokens=value_of("sglang:page_size") + label_of("sglang:cache_config_info", "page_size"),
        max_running=value_of("sglang_max_running_requests"),
    ),
    json=JsonPage(is_ours=_is_loads, read=_read_loads),
)
