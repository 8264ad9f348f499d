"""Ollama: what is loaded, and never a load."""

import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.ollama import OLLAMA
from epp.scrape.engines.page import PageError
from tests.scrape.engines.reading import EXPOSITION, JSON, read
from tests.scrape.pages import sample_page


def test_the_loaded_models_are_known_and_the_load_is_not() -> None:
    metrics = read(OLLAMA, sample_page("ollama-saturated.txt"), JSON)

    assert metrics.models == {"llama3.1:8b", "qwen3:8b"}
    assert not metrics.has_load
    assert OLLAMA.missing(metrics) == ()


@pytest.mark.parametrize("page", [b'{"models": []}', b'{"models": null}', b'{"models": [3, {"name": 4}, {}]}'])
def test_a_server_without_loaded_models_is_usable(page: bytes) -> None:
    assert read(OLLAMA, page, JSON) == EndpointMetrics()


@pytest.mark.parametrize("page", [b"[]", b'{"model": 1}', b'{"models": "x"}', b"Ollama is running"])
def test_another_page_is_no_list_of_models(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(OLLAMA, page, JSON)

    assert caught.value.reason == "garbage"


def test_it_has_no_metrics_page() -> None:
    with pytest.raises(PageError):
        read(OLLAMA, b"g 1\n", EXPOSITION)
