"""vLLM, versions 0.4 to 0.32, Python and Rust frontends.

One series per engine (data-parallel rank). `vllm:num_requests_waiting_by_reason` holds the same requests as
`vllm:num_requests_waiting` again. The size of the cache stands in the labels of an info family.
"""

from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import label_of, value_of
from epp.scrape.selector import Selector

VLLM = Engine(
    name="vllm",
    sources=(Source(path="/metrics"),),
    recognise=(b"vllm:",),
    exposition=ExpositionPage(
        waiting=value_of("vllm:num_requests_waiting"),
        running=value_of("vllm:num_requests_running"),
        kv_usage=value_of("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the old name: up to 0.10
        kv_blocks=label_of("vllm:cache_config_info", "num_gpu_blocks"),
        kv_block_tokens=label_of("vllm:cache_config_info", "block_size"),
        lora=Selector(name="vllm:lora_requests_info"),
    ),
)
