"""Every sample page: whose it is and what it says. The numbers were read off the pages by eye."""

from dataclasses import dataclass

import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.page import Fault, PageFormat, PageUnchangedError
from tests.scrape.pages import FOLDER, sample_page

CATALOG = EngineCatalog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What stands on one page; None where it says nothing."""

    engine: str
    waiting: float | None = None
    running: float | None = None
    kv: float | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    at_once: int | None = None
    models: frozenset[str] = frozenset()


def vllm(waiting: float, running: float, kv: float, blocks: int = 27283, block_tokens: int = 16) -> Page:
    return Page(engine="vllm", waiting=waiting, running=running, kv=kv, blocks=blocks, block_tokens=block_tokens)


def sglang(waiting: float | None, running: float | None, kv: float | None, blocks: int = 35712) -> Page:
    return Page(engine="sglang", waiting=waiting, running=running, kv=kv, blocks=blocks, block_tokens=16)


def trtllm(waiting: float, running: float, kv: float) -> Page:
    return Page(engine="trtllm-serve", waiting=waiting, running=running, kv=kv, blocks=10024, block_tokens=32, at_once=64)


def triton(waiting: float, running: float, kv: float) -> Page:
    return Page(
        engine="triton-tensorrt-llm", waiting=waiting, running=running, kv=kv, blocks=10024, block_tokens=32, at_once=64
    )


def llamacpp(waiting: float | None, running: float, kv: float | None = None, at_once: int | None = None) -> Page:
    return Page(engine="llamacpp", waiting=waiting, running=running, kv=kv, at_once=at_once)


PAGES = {
    "vllm-busy.txt": vllm(1, 23, 0.41833905139096766),
    "vllm-idle.txt": vllm(0, 0, 0.0),
    "vllm-saturated.txt": vllm(187, 256, 0.9970678788915848),
    "vllm-0.32-real-busy.txt": vllm(12, 8, 0.002930045171529727, blocks=8192, block_tokens=128),
    "vllm-0.32-real-idle.txt": vllm(0, 0, 0.0, blocks=8192, block_tokens=128),
    "vllm-0.11-multiapi-busy.txt": vllm(1, 23, 0.41833905139096766),
    "vllm-0.11-multiapi-idle.txt": vllm(0, 0, 0.0),
    "vllm-0.11-multiapi-saturated.txt": vllm(187, 256, 0.9970678788915848),
    "vllm-0.7-v0engine-busy.txt": vllm(1, 23, 0.41833905139096766, blocks=27411),
    "vllm-0.7-v0engine-idle.txt": vllm(0, 0, 0.0, blocks=27411),
    "vllm-0.7-v0engine-saturated.txt": vllm(187, 256, 0.9970678788915848, blocks=27411),
    "sglang-busy.txt": sglang(2, 31, 0.3741209),
    "sglang-idle.txt": sglang(0, 0, 0.0),
    "sglang-saturated.txt": sglang(143, 192, 0.9894231),
    "sglang-fresh.txt": sglang(None, None, None),
    "sglang-cacheinfo-2026-02-busy.txt": sglang(2, 31, 0.3741209),
    "sglang-cacheinfo-2026-02-idle.txt": sglang(0, 0, 0.0),
    "sglang-cacheinfo-2026-02-saturated.txt": sglang(143, 192, 0.9894231),
    # two ranks: 2 + 0 and 31 + 20 requests, 0.3741209 and 0.2656258 of the cache, 35712 pages each
    "sglang-dp2-priority-busy.txt": sglang(2, 51, 0.3741209, blocks=71424),
    "sglang-dp2-priority-idle.txt": sglang(0, 0, 0.0, blocks=71424),
    # 143 + 53 and 192 + 181 requests
    "sglang-dp2-priority-saturated.txt": sglang(196, 373, 0.9894231, blocks=71424),
    "trtllm-prometheus-busy.txt": trtllm(4, 18, 0.31175179569034317),
    "trtllm-prometheus-idle.txt": trtllm(0, 0, 0.0),
    "trtllm-prometheus-saturated.txt": trtllm(212, 64, 0.9980047885075818),
    "trtllm-prometheus-fresh.txt": Page(engine="trtllm-serve"),
    # the last of 24 and of 96 steps
    "trtllm-busy.txt": trtllm(2, 18, 3119 / 10024),
    "trtllm-saturated.txt": trtllm(209, 64, 9988 / 10024),
    "triton-trtllm-busy.txt": triton(3, 18, 0.3112529928172386),
    "triton-trtllm-idle.txt": triton(0, 0, 0.0),
    "triton-trtllm-saturated.txt": triton(211, 64, 0.99780526735834),
    "llamacpp-busy.txt": llamacpp(0, 3),
    "llamacpp-idle.txt": llamacpp(0, 0),
    "llamacpp-saturated.txt": llamacpp(37, 4),
    "llamacpp-2025-04-busy.txt": llamacpp(0, 3, 0.427917),
    "llamacpp-2025-04-idle.txt": llamacpp(0, 0, 0.0249023),
    "llamacpp-2025-04-saturated.txt": llamacpp(37, 4, 1.0),
    # 3, 0 and 4 of 4 equal slots
    "llamacpp-slots-busy.json": llamacpp(None, 3, 0.75, at_once=4),
    "llamacpp-slots-idle.json": llamacpp(None, 0, 0.0, at_once=4),
    "llamacpp-slots-saturated.json": llamacpp(None, 4, 1.0, at_once=4),
    "tgi-busy.txt": Page(engine="tgi", waiting=2, running=17),
    "tgi-idle.txt": Page(engine="tgi", waiting=0, running=0),
    "tgi-saturated.txt": Page(engine="tgi", waiting=58, running=70),
    "lmdeploy-busy.txt": Page(engine="lmdeploy", waiting=2, running=21, kv=0.3318),
    "lmdeploy-idle.txt": Page(engine="lmdeploy", waiting=0, running=0, kv=0.0),
    "lmdeploy-saturated.txt": Page(engine="lmdeploy", waiting=31 + 240, running=128, kv=0.9912),
    "ollama-busy.txt": Page(engine="ollama", models=frozenset({"llama3.1:8b"})),
    "ollama-idle.txt": Page(engine="ollama"),
    "ollama-saturated.txt": Page(engine="ollama", models=frozenset({"llama3.1:8b", "qwen3:8b"})),
}
UNCHANGED_PAGES = {"trtllm-idle.txt": "trtllm-serve"}


def test_every_sample_page_is_in_the_table() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {*PAGES, *UNCHANGED_PAGES}


@pytest.mark.parametrize("file", PAGES)
def test_a_sample_page_is_recognised_and_read(file: str) -> None:
    """Field report 39: the engine is recognised from the page; families that are absent are unknown, not 0."""
    body, expected = sample_page(file), PAGES[file]
    engine = CATALOG.recognise(body, None)
    assert engine is not None
    assert engine.name == expected.engine
    form = PageFormat.JSON if body[:1] in (b"[", b"{") else PageFormat.EXPOSITION
    faults: list[Fault] = []

    metrics = engine.read(next(s for s in engine.sources if s.format is form), body, faults.append)

    assert metrics == EndpointMetrics(
        waiting_requests=expected.waiting,
        running_requests=expected.running,
        kv_cache_usage_ratio=expected.kv,
        kv_cache_blocks=expected.blocks,
        kv_cache_block_tokens=expected.block_tokens,
        max_running_requests=expected.at_once,
        models=expected.models,
    )
    assert faults == []


@pytest.mark.parametrize("file", UNCHANGED_PAGES)
def test_a_page_without_news_is_recognised_and_says_so(file: str) -> None:
    body = sample_page(file)
    engine = CATALOG.recognise(body, "application/json")
    assert engine is not None
    assert engine.name == UNCHANGED_PAGES[file]

    with pytest.raises(PageUnchangedError):
        engine.read(next(s for s in engine.sources if s.format is PageFormat.JSON), body)
