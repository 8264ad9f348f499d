"""NVIDIA Triton with the TensorRT-LLM backend.

One family holds several quantities, told apart by a label. The backend assigns values to labels by position and may shift
them, so the published fraction is checked against used / all blocks. Several models may share the page.
"""

from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import value_of

_REQUESTS = 'nv_trt_llm_request_metrics{{request_type="{}"}}'
_BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{}"}}'
_ALL_BLOCKS = value_of(_BLOCKS.format("max"))

TRITON = Engine(
    name="triton-tensorrt-llm",
    aliases=("triton", "triton-trtllm", "tensorrtllm_backend"),
    sources=(Source(path="/metrics", port=8002),),
    recognise=(b"nv_trt_llm_", b"nv_inference_"),
    exposition=ExpositionPage(
        # the second: all there is with backends other than TensorRT-LLM's own
        waiting=value_of(_REQUESTS.format("waiting"), "nv_inference_pending_request_count"),
        running=value_of(_REQUESTS.format("scheduled"), _REQUESTS.format("active")),
        kv_usage=value_of(_BLOCKS.format("fraction")),
        kv_blocks=_ALL_BLOCKS,
        kv_block_tokens=value_of(_BLOCKS.format("tokens_per")),
        kv_used_of=(value_of(_BLOCKS.format("used"))[0][0], _ALL_BLOCKS[0][0]),
        max_running=value_of(_REQUESTS.format("max")),
    ),
)
