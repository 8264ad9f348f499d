"""Microbenchmarks without a network: what the parts cost of which a request and a scrape consist."""

import random
from collections.abc import Coroutine, Iterator
from typing import Any

from yarl import URL

from epp.config.settings import ScrapeSettings
from epp.extproc.actions import Action
from epp.extproc.decoder import decode
from epp.extproc.encoder import encode
from epp.extproc.events import Event
from epp.extproc.request_body import read_request_body
from epp.extproc.session import Session
from epp.pool.endpoint import Endpoint, EndpointSpec, endpoint_address
from epp.scrape.catalog import EngineCatalog
from epp.scrape.change_log import ChangeLog
from epp.scrape.engines.page import unseen
from epp.scrape.engines.vllm import VLLM
from epp.scrape.fetch import MetricsPage
from epp.scrape.pace import Pace
from epp.scrape.response import Response
from epp.scrape.scraper import Scraper
from epp.telemetry.logging import configure_logging
from epp.telemetry.outcome import RequestOutcome
from tests.bench.cases import GOAL_PICK_US, LOAD_CASES, LOAD_ENDPOINTS, chat_body
from tests.bench.exchange import PATH, messages_of
from tests.bench.picker import PickerInProcess
from tests.bench.scene import METRICS_PAGE
from tests.bench.timing import PartCost, timed

SIZES = {case.name: case.body_bytes for case in LOAD_CASES if case.endpoints == LOAD_ENDPOINTS}
POOL_SIZES = (10, 100, 1000)
WHOLE_REQUEST, WHOLE_SCRAPE = "session and codec, whole request", "scrape without its network"


def measure_parts(watch_s: float) -> Iterator[PartCost]:
    """Each part in turn, for `watch_s` each."""
    for endpoint_count in POOL_SIZES:
        yield _pick(endpoint_count, watch_s)
    for size, size_bytes in SIZES.items():
        yield from _request(size, chat_body(size_bytes), watch_s)
    yield _request_ended(watch_s)
    yield from _scrape(METRICS_PAGE.read_bytes(), watch_s)


def _pick(endpoint_count: int, watch_s: float) -> PartCost:
    picker = PickerInProcess(endpoint_count)
    picker.scrape_all()
    goal_us = GOAL_PICK_US.get(endpoint_count)
    return timed(f"pick, {endpoint_count} endpoints", picker.pick, picker.next_request, watch_s, goal_us)


def _request(size: str, body: bytes, watch_s: float) -> Iterator[PartCost]:
    picker = PickerInProcess(LOAD_ENDPOINTS)
    messages = messages_of(body)
    events = [event for message in messages if (event := decode(message)) is not None]

    def whole(_: None) -> None:
        session = Session(picker.exchange)
        for message in messages:
            event = decode(message)
            assert event is not None
            for action in session.receive(event):
                encode(action)
        session.end(cancelled=False)

    def decode_all(_: None) -> None:
        for message in messages:
            decode(message)

    def encode_all(actions: list[Action]) -> None:
        for action in actions:
            encode(action)

    picker.scrape_all()
    yield timed(f"{WHOLE_REQUEST}, {size}", whole, _nothing, watch_s)
    yield timed(f"  codec: decode {len(messages)} messages, {size}", decode_all, _nothing, watch_s / 2)
    picker.scrape_all()
    yield timed(f"  session: {len(events)} events, {size}", lambda _: _run(picker, events), _nothing, watch_s / 2)
    actions = _run(picker, events)
    yield timed(f"  codec: encode {len(actions)} messages, {size}", encode_all, lambda: actions, watch_s / 2)
    read = timed(
        f"    reading the body, {size}",
        lambda _: read_request_body(PATH, "application/json", None, body),
        _nothing,
        watch_s / 2,
    )
    yield read


def _run(picker: PickerInProcess, events: list[Event]) -> list[Action]:
    session = Session(picker.exchange)
    actions = [action for event in events for action in session.receive(event)]
    session.end(cancelled=False)
    return actions


def _request_ended(watch_s: float) -> PartCost:
    metrics = PickerInProcess(LOAD_ENDPOINTS).metrics

    def begun() -> RequestOutcome:
        outcome = RequestOutcome(started_at_s=1.0, model="m", picked_at_s=1.001, endpoint="10.0.0.1:8000", status=200)
        metrics.request_began(outcome)
        outcome.first_byte_at_s, outcome.ended_at_s = 1.2, 1.3
        outcome.request_bytes, outcome.response_bytes = 500, 251
        outcome.prompt_tokens, outcome.completion_tokens = 10, 3
        return outcome

    return timed("    counting at the end (request_ended)", metrics.request_ended, begun, watch_s / 2)


def _scrape(page: bytes, watch_s: float) -> Iterator[PartCost]:
    source = VLLM.sources[0]
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: text/plain; version=0.0.4\r\n\r\n" % len(page) + page

    def read_answer(response: Response) -> None:
        response.feed(answer)
        response.body()

    scraper = _scraper(page)
    yield timed(WHOLE_SCRAPE, lambda _: _finish(scraper.scrape()), _nothing, watch_s)
    yield timed("  page to metrics (50 KB)", lambda _: VLLM.read(source, page, unseen), _nothing, watch_s / 2)
    yield timed("  HTTP answer to page (50 KB)", read_answer, lambda: Response(1 << 20), watch_s / 2)


def _scraper(page: bytes) -> Scraper:
    picker = PickerInProcess(1)
    endpoint = Endpoint(EndpointSpec(address=endpoint_address("10.0.0.1", 8000), name="e1"))
    settings = ScrapeSettings()
    pace = Pace(interval_s=settings.interval_s, fair_share_s=lambda: 0.01, random=random.Random(7))
    return Scraper(
        endpoint,
        fetcher=_Memory(page),
        catalog=EngineCatalog(),
        settings=settings,
        pace=pace,
        clock=picker.clock,
        observer=picker.metrics,
        changes=ChangeLog(configure_logging("error", "json")("bench"), picker.clock, endpoint),
    )


class _Memory:
    """A server whose page is there at once."""

    def __init__(self, page: bytes) -> None:
        self._page = MetricsPage(body=page, content_type="text/plain; version=0.0.4", server_s=0.0005)

    async def get(self, url: URL, *, keep: bool = True) -> MetricsPage:
        return self._page

    def drop(self, url: URL) -> None:
        """Nothing is kept."""


def _finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("expected a coroutine that waits for nothing")


def _nothing() -> None:
    return None
