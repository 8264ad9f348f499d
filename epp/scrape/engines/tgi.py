"""Hugging Face text-generation-inference. A server that has served nothing yet has an empty page."""

from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import value_of

TGI = Engine(
    name="tgi",
    aliases=("text-generation-inference",),
    sources=(Source(path="/metrics"),),
    recognise=(b"tgi_",),
    exposition=ExpositionPage(
        waiting=value_of("tgi_queue_size"),
        running=value_of("tgi_batch_current_size"),
        may_be_empty=True,
    ),
)
