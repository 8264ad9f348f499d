"""Metrics pages that need no network, and who counts what came of them."""

import asyncio
from collections.abc import Mapping
from typing import Self

from yarl import URL

from epp.pool.endpoint import Endpoint, EndpointAddress, EndpointSpec
from epp.scrape.fetch import MetricsPage
from epp.scrape.reasons import Reason, ScrapeError

Outcome = MetricsPage | Exception | None
"""What a read gives; None is a read that never ends."""

NOT_FOUND = ScrapeError(Reason.NOT_ENABLED, "metrics are not enabled: /metrics answered 404")
REFUSED = ScrapeError(Reason.REFUSED, "no connection to 10.0.0.1:8000: Connection refused")
TOO_SLOW = ScrapeError(Reason.TIMEOUT, "no complete page within 1 s, the server is probably busy")


def page(text: str, *, server_s: float = 0.0, process_start: str | None = None) -> MetricsPage:
    """A page as the fetcher gives it."""
    kind = "application/json" if text[:1] in {"[", "{"} else "text/plain; version=0.0.4"
    return MetricsPage(body=text.encode(), content_type=kind, server_s=server_s, process_start=process_start)


def vllm(waiting: int = 0, running: int = 0, *, server_s: float = 0.0, more: str = "") -> MetricsPage:
    """A short page of vLLM."""
    text = f"vllm:num_requests_waiting {waiting}\n{more}\nvllm:num_requests_running {running}\n"
    return page(text, server_s=server_s)


def sglang(queue: int) -> MetricsPage:
    """A short page of SGLang."""
    return page(f"sglang:num_queue_reqs {queue}\nsglang:num_running_reqs 0\n")


def spec(address: str = "10.0.0.1:8000", **more: object) -> EndpointSpec:
    """What discovery says of an endpoint."""
    return EndpointSpec(address=EndpointAddress(address), name=address, **more)  # type: ignore[arg-type]


class FakePages:
    """A fetcher that gives what a test put at an address.

    Attributes:
        at: By `host:port/path`, else by `/path` for every endpoint; what is at neither is 404.
        asked: Addresses that were asked for, in order.
        cut: Addresses of reads that were cancelled.
        kept: For each of `asked`, whether a connection might be kept.
        dropped: Addresses for which nothing must be kept any more.
    """

    def __init__(self, at: Mapping[str, Outcome] | None = None) -> None:
        self.at: dict[str, Outcome] = dict(at or {})
        self.asked: list[str] = []
        self.cut: list[str] = []
        self.kept: list[bool] = []
        self.dropped: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def drop(self, url: URL) -> None:
        """Remember that nothing is kept for `url` any more."""
        self.dropped.append(f"{url.host}:{url.port}{url.path_qs}")

    async def get(self, url: URL, *, keep: bool = True) -> MetricsPage:
        """What is at `url` now."""
        where = f"{url.host}:{url.port}{url.path_qs}"
        self.asked.append(where)
        self.kept.append(keep)
        outcome = self.at[where] if where in self.at else self.at.get(url.path_qs, NOT_FOUND)
        try:
            await (asyncio.Event().wait() if outcome is None else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cut.append(where)
            raise
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Counted:
    """Counts scrapes."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int]] = []
        self.failed: list[tuple[str, str]] = []
        self.discarded: list[str] = []

    def scrape_ended(self, endpoint: Endpoint, duration_s: float, page_bytes: int) -> None:
        """A page was read."""
        assert duration_s >= 0
        self.ended.append((endpoint.address, page_bytes))

    def scrape_failed(self, endpoint: Endpoint, reason: str) -> None:
        """A scrape gave nothing."""
        self.failed.append((endpoint.address, reason))

    def value_discarded(self, endpoint: Endpoint, fault: str) -> None:
        """A value was left out."""
        self.discarded.append(fault)


class Lines:
    """A log that keeps what it was told, as (level, event, fields)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[str, object]]] = []

    @property
    def events(self) -> list[str]:
        """The events alone."""
        return [event for _, event, _ in self.told]

    def info(self, event: str, **fields: object) -> None:
        """Keep a line."""
        self.told.append(("info", event, fields))

    def warning(self, event: str, **fields: object) -> None:
        """Keep a line."""
        self.told.append(("warning", event, fields))

    def error(self, event: str, **fields: object) -> None:
        """Keep a line."""
        self.told.append(("error", event, fields))
