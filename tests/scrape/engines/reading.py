"""Reading a page as one engine's, with what was left out of it."""

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.page import Fault, PageFormat, Source

EXPOSITION = Source(path="/metrics")
JSON = Source(path="/json", format=PageFormat.JSON)


def read(engine: Engine, page: str | bytes, source: Source = EXPOSITION) -> EndpointMetrics:
    """What the page says."""
    return engine.read(source, page.encode() if isinstance(page, str) else page)


def faults(engine: Engine, page: str | bytes, source: Source = EXPOSITION) -> list[Fault]:
    """What was left out of the page, in the order in which it was met."""
    met: list[Fault] = []
    engine.read(source, page.encode() if isinstance(page, str) else page, met.append)
    return met
