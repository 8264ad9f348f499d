"""Scrapers following the pool, in time that passes only when the test says so."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest

from epp.clock import SystemClock
from epp.config.settings import ScrapeSettings
from epp.pool.endpoint import Endpoint, MetricsTarget
from epp.pool.state import PoolState
from epp.scrape.catalog import EngineCatalog
from epp.scrape.change_log import FAILING, RECOVERED
from epp.scrape.fleet import STILL_FAILING, Fleet
from epp.scrape.scraper import Scraper
from tests.fakes.metrics_server import Answer, MetricsServer
from tests.scrape.fake_pages import REFUSED, Counted, FakePages, Lines, page, sglang, spec, vllm
from tests.scrape.virtual_time import VirtualTime

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
LOCAL = "127.0.0.1"


@pytest.fixture(autouse=True)
def no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading costs nothing: what it costs on a busy machine would stretch the intervals."""
    monkeypatch.setattr("epp.scrape.fleet.Scraper", partial(Scraper, cpu_s=lambda: 0.0))


class Rig:
    """A pool and its fleet, with faked pages and time."""

    def __init__(self, **settings: object) -> None:
        self.time = VirtualTime()
        self.pages = FakePages({"/metrics": vllm(1)})
        self.counted = Counted()
        self.lines = Lines()
        self.pool = PoolState(self.time.clock, name="p", source="static")
        self.fleet = Fleet(
            self.pool,
            EngineCatalog(),
            ScrapeSettings(**settings),  # type: ignore[arg-type]
            clock=self.time.clock,
            random=Random(7),
            observer=self.counted,
            log=self.lines,
            fetcher=self.pages,
            sleep=self.time.sleep,
        )

    def endpoint(self, address: str) -> Endpoint:
        """The record of an endpoint in the pool."""
        return next(e for e in self.pool.endpoints if e.address == address)

    def hits(self) -> Counter[str]:
        """Reads by host, so far."""
        return Counter(where.partition(":")[0] for where in self.pages.asked)


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[asyncio.Task[None]]:
    """Run the fleet, and end it; it must not have ended by itself."""
    task: asyncio.Task[None] = asyncio.create_task(fleet.run())
    try:
        yield task
        assert not task.done(), "a service never returns"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for something that a real server causes."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


async def test_every_endpoint_is_read_at_the_interval_that_was_asked_for() -> None:
    rig = Rig()
    rig.pool.sync([spec(A), spec(B)])
    async with running(rig.fleet):
        await rig.time.advance(10.0)

    assert rig.hits() == pytest.approx({"10.0.0.1": 200, "10.0.0.2": 200}, rel=0.05)


async def test_all_endpoints_together_stay_under_the_highest_rate() -> None:
    rig = Rig(max_rate_per_second=50.0)
    rig.pool.sync([spec(f"10.0.1.{n}:8000") for n in range(1, 21)])
    async with running(rig.fleet):
        await rig.time.advance(2.0)
        before = len(rig.pages.asked)
        await rig.time.advance(10.0)

    assert len(rig.pages.asked) - before == pytest.approx(500, rel=0.1)
    assert min(rig.hits().values()) > 0.7 * max(rig.hits().values())


async def test_an_endpoint_that_hangs_or_breaks_leaves_the_others_alone() -> None:
    rig = Rig()
    rig.pages.at = {f"{A}/metrics": None, f"{B}/metrics": RuntimeError("a bug"), f"{C}/metrics": vllm()}
    rig.pool.sync([spec(A), spec(B), spec(C)])
    async with running(rig.fleet):
        await rig.time.advance(5.0)

    assert rig.hits()["10.0.0.3"] > 90
    assert rig.hits()["10.0.0.1"] == 1


async def test_an_endpoint_that_joins_is_read_at_once() -> None:
    rig = Rig()
    rig.pool.sync([])
    async with running(rig.fleet):
        await rig.time.advance(3.0)
        rig.pool.sync([spec(A)])
        await rig.time.advance(0.002)

        assert rig.endpoint(A).load.waiting_requests == 1


async def test_an_endpoint_that_leaves_is_not_read_any_more() -> None:
    rig = Rig()
    rig.pool.sync([spec(A), spec(B)])
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        left = rig.endpoint(A)
        rig.pool.sync([spec(B)])
        before = rig.hits()
        await rig.time.advance(5.0)

    assert rig.hits()["10.0.0.1"] == before["10.0.0.1"]
    assert rig.hits()["10.0.0.2"] > before["10.0.0.2"]
    assert left.scrape_interval_s is None
    assert rig.pages.dropped[:1] == ["10.0.0.1:8000/metrics"]


async def test_a_read_that_is_under_way_when_its_endpoint_leaves_is_cut_and_changes_nothing() -> None:
    rig = Rig()
    rig.pages.at["/metrics"] = None
    rig.pool.sync([spec(A)])
    async with running(rig.fleet):
        await rig.time.advance(0.1)
        left = rig.endpoint(A)
        rig.pool.sync([])
        await rig.time.settle()

        assert rig.pages.cut == [f"{A}/metrics"]
        assert left.metrics is None


async def test_an_endpoint_that_comes_back_is_read_again() -> None:
    rig = Rig()
    async with running(rig.fleet):
        for _ in range(20):
            rig.pool.sync([spec(A)])
            rig.pool.sync([])
        rig.pool.sync([spec(A)])
        await rig.time.advance(2.0)

        assert rig.hits()["10.0.0.1"] > 30
        assert rig.endpoint(A).load.waiting_requests == 1


async def test_another_metrics_port_or_engine_makes_a_new_start() -> None:
    rig = Rig()
    rig.pages.at["10.0.0.1:9400/metrics"] = sglang(5)
    rig.pool.sync([spec(A)])
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        rig.pool.sync([spec(A, metrics=MetricsTarget(port=9400), engine="sglang")])
        assert rig.endpoint(A).metrics is None, "the old numbers came from another page"
        before = len(rig.pages.asked)
        await rig.time.advance(1.0)

        assert set(rig.pages.asked[before:]) == {"10.0.0.1:9400/metrics"}
        assert rig.endpoint(A).load.waiting_requests == 5


async def test_a_change_that_is_none_for_scraping_disturbs_nothing() -> None:
    rig = Rig()
    rig.pages.at["/metrics"] = None
    rig.pool.sync([spec(A)])
    async with running(rig.fleet):
        await rig.time.advance(0.1)
        rig.pool.sync([spec(A, draining=True, weight=2.0)])
        await rig.time.settle()

        assert rig.pages.cut == []


async def test_nothing_is_ever_called_when_scraping_is_off() -> None:
    """Field report 43: scraping can have side effects, so it can be turned off."""
    rig = Rig(enabled=False)
    assert rig.fleet.first_round_done.is_set()
    async with running(rig.fleet):
        rig.pool.sync([spec(A)])
        await rig.time.advance(60.0)

        assert rig.pages.asked == []
        assert rig.endpoint(A).scrape_interval_s is None
        assert rig.endpoint(A).scrape_error is None


async def test_the_first_round_is_done_when_every_founder_had_a_scrape_that_ended() -> None:
    rig = Rig()
    rig.pages.at[f"{B}/metrics"] = REFUSED
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        assert not rig.fleet.first_round_done.is_set(), "the pool is not listed yet"

        rig.pool.sync([spec(A), spec(B)])
        await rig.time.advance(0.1)
        assert rig.fleet.first_round_done.is_set()


async def test_the_first_round_of_an_empty_pool_is_done_at_once() -> None:
    rig = Rig()
    async with running(rig.fleet):
        rig.pool.sync([])
        await rig.time.advance(0.02)
        assert rig.fleet.first_round_done.is_set()


async def test_the_first_round_waits_for_a_founder_only_while_it_is_in_the_pool() -> None:
    rig = Rig()
    rig.pages.at[f"{A}/metrics"] = None
    rig.pool.sync([spec(A), spec(B)])
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        assert not rig.fleet.first_round_done.is_set()
        rig.pool.sync([spec(B)])
        await rig.time.settle()
        assert rig.fleet.first_round_done.is_set()


async def test_the_first_round_ends_even_when_an_endpoint_never_answers() -> None:
    rig = Rig(timeout_s=0.01)
    rig.pages.at["/metrics"] = None
    rig.pool.sync([spec(A)])
    async with running(rig.fleet):
        await asyncio.wait_for(rig.fleet.first_round_done.wait(), 60.0)


async def test_a_mixed_pool_is_read_to_the_last_endpoint_and_one_without_load_is_known_as_such() -> None:
    """Field report 39: a mixed pool without labels is read to the last endpoint; one without load metrics is counted."""
    rig = Rig()
    rig.pages.at = {
        f"{A}/metrics": vllm(3),
        f"{B}/metrics": sglang(4),
        f"{C}/metrics": page("llamacpp:requests_deferred 5\nllamacpp:requests_processing 1\n"),
    }
    rig.pool.sync([spec(A), spec(B), spec(C)])
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        assert [e.load.waiting_requests for e in rig.pool.endpoints] == [3, 4, 5]
        assert all(e.tells_load for e in rig.pool.endpoints)

        rig.pages.at["10.0.0.4:8000/metrics"] = page("node_cpu_seconds_total 1\n")
        rig.pool.sync([spec(A), spec(B), spec(C), spec("10.0.0.4:8000")])
        await rig.time.advance(1.0)
        assert [e.tells_load for e in rig.pool.endpoints] == [True, True, True, False]


@pytest.mark.timeout(600)
async def test_a_minute_without_one_of_three_endpoints_is_told_in_a_few_lines() -> None:
    """Field report 45: at most five lines in 60 s at a fast interval, and one on return."""
    rig = Rig(interval_s=0.02)
    rig.pool.sync([spec(A), spec(B), spec(C)])
    async with running(rig.fleet):
        await rig.time.advance(1.0)
        rig.pages.at[f"{A}/metrics"] = REFUSED
        await rig.time.advance(60.0)
        assert 1 <= rig.lines.events.count(FAILING) <= 5

        del rig.pages.at[f"{A}/metrics"]
        await rig.time.advance(5.0)
        assert rig.lines.events.count(RECOVERED) == 1
        assert rig.counted.failed, "failures are counted all the same"


@pytest.mark.timeout(600)
async def test_failures_that_last_are_summed_up_now_and_then_in_one_line() -> None:
    rig = Rig()
    rig.pages.at = {f"{A}/metrics": vllm()}
    rig.pool.sync([spec(A), spec(B), spec(C)])
    async with running(rig.fleet):
        await rig.time.advance(650.0)

    summaries = [fields for _, event, fields in rig.lines.told if event == STILL_FAILING]
    assert summaries == [{"endpoints": 2, "of_endpoints": 3, "reasons": {"not_enabled": 2}}] * 2


async def test_a_real_server_that_blocks_and_one_that_is_slow_are_read_side_by_side() -> None:
    """Field reports 36 and 42, on sockets: a page of 30 ms is read about once a second, a page that hangs keeps its values."""
    clock = SystemClock()
    pool = PoolState(clock, name="p", source="static")
    settings = ScrapeSettings(timeout_s=0.5)
    async with MetricsServer(vllm(1).body) as fast, MetricsServer() as slow, MetricsServer(vllm(6).body) as stuck:
        slow.answer = Answer(body=vllm(2).body, delay_s=0.03)
        fleet = Fleet(pool, EngineCatalog(), settings, clock=clock, random=Random(1), observer=Counted(), log=Lines())
        pool.sync([spec(server.address) for server in (fast, slow, stuck)])
        began_at_s = clock.monotonic_s()
        async with running(fleet):
            await until(lambda: all(endpoint.metrics for endpoint in pool.endpoints))
            stuck.answer = Answer(hang=True)
            await until(lambda: len(fast.requests) >= 20)
            assert len(slow.requests) <= 2 + 2 * (clock.monotonic_s() - began_at_s)
            assert [endpoint.load.waiting_requests for endpoint in pool.endpoints] == [1, 2, 6]
            await until(lambda: "probably busy" in (pool.endpoints[2].scrape_error or ""))
