"""`/metrics`."""

import asyncio
import gzip
import re
from collections.abc import Callable, Iterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_ASKED_VERSION = re.compile(r"\bversion=([^;,]*)")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){0,3}", re.ASCII)
GZIP_LEVEL = 1
"""Metric pages shrink to a tenth at any level, and the fastest costs a quarter of the default."""


class _Snapshot(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def metrics_routes(registry: CollectorRegistry) -> list[web.RouteDef]:
    """The registry in the format that the client asks for (text or OpenMetrics, gzip), as `prometheus_client` serves it.

    With 1,000 model names the page has half a million lines. So the numbers are read family by family on the event loop,
    which may do other work between two of them, and the text is made on a thread.
    """

    async def metrics(request: web.Request) -> web.Response:
        encoder, content_type = _choose_encoder(request.headers.get("accept", ""))
        zipped = gzip_accepted(request.headers.get("accept-encoding", ""))
        families = await _read(registry, frozenset(request.query.getall("name[]", [])))
        body = await asyncio.to_thread(_render, encoder, families, zipped)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if zipped:
            headers["content-encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    return [web.get("/metrics", metrics)]


def _choose_encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The format that the client asks for; plain text if its `version` is none.

    `prometheus_client` compares versions without a look at what they are made of, and repeats them in its answer.
    """
    versions = _ASKED_VERSION.findall(accept)
    return choose_encoder(accept if all(_VERSION.fullmatch(version.strip()) for version in versions) else "")


async def _read(registry: CollectorRegistry, wanted: frozenset[str]) -> list[Metric]:
    """All families, or only the samples of the names in `wanted` if there are any (`?name[]=…`)."""
    families = []
    for family in registry.collect():
        if wanted:
            family.samples = [sample for sample in family.samples if sample.name in wanted]
        if family.samples or not wanted:
            families.append(family)
        await asyncio.sleep(0)
    return families


def _render(encoder: Callable[[Collector], bytes], families: Sequence[Metric], zipped: bool) -> bytes:
    page = encoder(_Snapshot(families))
    return gzip.compress(page, GZIP_LEVEL) if zipped else page
