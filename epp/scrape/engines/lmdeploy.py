"""LMDeploy. Requests wait in two queues, one in front of the engine and one in it; both count."""

from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import value_of

READ_EVERY_S = 1.0
"""The server renews its gauges each 10 s. Reading each second sees that within a second, and keeps the age of the last
answer well under the usual staleness threshold."""

LMDEPLOY = Engine(
    name="lmdeploy",
    sources=(Source(path="/metrics", min_interval_s=READ_EVERY_S),),
    recognise=(b"lmdeploy:",),
    exposition=ExpositionPage(
        waiting=value_of(("lmdeploy:num_requests_waiting", "lmdeploy:num_api_requests_waiting")),
        running=value_of("lmdeploy:num_requests_running"),
        kv_usage=value_of("lmdeploy:gpu_cache_usage_perc"),
    ),
)
