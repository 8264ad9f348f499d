"""One endpoint's record and what scrapes do to it, on a clock that stands still."""

from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from epp.config.settings import ScrapeSettings
from epp.pool.endpoint import Endpoint, EndpointSpec, EndpointState, MetricsTarget
from epp.scrape.catalog import EngineCatalog
from epp.scrape.change_log import FAILING, LACKING, ChangeLog
from epp.scrape.exposition import MOST_LINES
from epp.scrape.pace import Pace
from epp.scrape.scraper import LOCATE_AGAIN_AFTER_S, READS_TO_TELL_LACK, Scraper
from tests.fakes.clock import FakeClock
from tests.scrape.fake_pages import (
    NOT_FOUND,
    REFUSED,
    TOO_SLOW,
    Counted,
    FakePages,
    Lines,
    Outcome,
    page,
    sglang,
    spec,
    vllm,
)


class Rig:
    """An endpoint, its scraper, and everything around it faked."""

    def __init__(self, outcome: Outcome, *, cpu_s: Callable[[], float] = lambda: 0.0, **about: object) -> None:
        self.pages = FakePages({"/metrics": outcome})
        self.clock = FakeClock()
        self.counted = Counted()
        self.lines = Lines()
        self.endpoint = Endpoint(spec(**about))  # type: ignore[arg-type]
        self.pace = Pace(interval_s=0.05, fair_share_s=lambda: 0.0, random=Random(1))
        self.scraper = Scraper(
            self.endpoint,
            fetcher=self.pages,
            catalog=EngineCatalog(),
            settings=ScrapeSettings(),
            pace=self.pace,
            clock=self.clock,
            observer=self.counted,
            changes=ChangeLog(self.lines, self.clock, self.endpoint),
            cpu_s=cpu_s,
        )

    async def scrape(self, outcome: Outcome | str = "same", *, times: int = 1) -> None:
        """Scrape a few times, each 50 ms after the last."""
        if not isinstance(outcome, str):
            self.pages.at["/metrics"] = outcome
        for _ in range(times):
            await self.scraper.scrape()
            self.clock.advance(0.05)


async def test_a_good_scrape_fills_the_record() -> None:
    rig = Rig(vllm(3, 2))

    await rig.scrape()

    assert rig.endpoint.metrics is not None
    assert rig.endpoint.load.waiting_requests == 3
    assert rig.endpoint.load.running_requests == 2
    assert rig.endpoint.engine == "vllm"
    assert rig.endpoint.scrape_error is None
    assert rig.endpoint.scraped_at_s == 1000.0
    assert rig.endpoint.scrape_interval_s == 0.05
    assert len(rig.counted.ended) == 1


async def test_what_was_picked_while_the_page_was_on_its_way_is_added_to_it() -> None:
    rig = Rig(vllm(0, 2))
    rig.endpoint.count_pick()
    rig.endpoint.count_pick()
    get = rig.pages.get

    async def pick_meanwhile(url: object, **how: object) -> object:
        rig.endpoint.count_pick()
        return await get(url, **how)  # type: ignore[arg-type]

    rig.pages.get = pick_meanwhile  # type: ignore[method-assign, assignment]
    await rig.scrape()

    assert rig.endpoint.in_flight_at_scrape == 2
    assert rig.endpoint.load.running_requests == 3


async def test_a_timeout_means_busy_and_the_last_values_and_own_counts_stay() -> None:
    """Field report 42: a server that does not answer the scrape is neither dead nor idle."""
    rig = Rig(vllm(5, 4))
    await rig.scrape()
    rig.endpoint.count_pick()

    await rig.scrape(TOO_SLOW, times=8)

    assert rig.endpoint.metrics is not None
    assert rig.endpoint.load.waiting_requests == 6
    assert rig.endpoint.scrape_error == "no complete page within 1 s, the server is probably busy"
    assert ("10.0.0.1:8000", "timeout") in rig.counted.failed


async def test_the_age_of_the_values_grows_while_scrapes_fail() -> None:
    """Field report 33: a page that stopped coming is seen by its age, so frozen values can be told from fresh ones."""
    rig = Rig(vllm())
    await rig.scrape()
    await rig.scrape(TOO_SLOW, times=60)

    age_s = rig.endpoint.metrics_age_s(rig.clock.now_s)
    assert age_s == pytest.approx(0.05 * 61)


async def test_a_slow_page_is_read_less_often() -> None:
    """Field report 36: the record tells the interval that was found bearable."""
    rig = Rig(vllm(server_s=0.03))
    await rig.scrape(times=5)

    assert rig.endpoint.scrape_interval_s == pytest.approx(1.5)


async def test_a_page_without_known_load_leaves_the_endpoint_on_its_own_counts() -> None:
    """Field report 39: it is reported and counted, not rejected."""
    rig = Rig(page("node_cpu_seconds_total 1\n"))
    await rig.scrape()
    rig.endpoint.count_pick()

    assert not rig.endpoint.tells_load
    assert "no known load metrics" in (rig.endpoint.scrape_error or "")
    assert rig.endpoint.load.running_requests == 1


async def test_a_fresh_server_is_recognised_once_its_gauges_appear() -> None:
    rig = Rig(page(""))
    await rig.scrape(times=3)
    seen = [rig.endpoint.tells_load]

    await rig.scrape(page("tgi_queue_size 2\n"))
    seen.append(rig.endpoint.tells_load)

    assert seen == [False, True]
    assert rig.endpoint.engine == "tgi"


async def test_an_engine_that_is_known_is_not_looked_for_again() -> None:
    rig = Rig(vllm())
    await rig.scrape(times=5)

    assert rig.pages.asked == ["10.0.0.1:8000/metrics"] * 5


async def test_no_connection_to_an_endpoint_that_drains_is_kept() -> None:
    rig = Rig(vllm())
    rig.endpoint.state = EndpointState.READY
    await rig.scrape()
    rig.endpoint.state = EndpointState.DRAINING
    await rig.scrape()

    assert rig.pages.kept == [True, False]


async def test_another_engine_at_the_same_address_is_seen_by_its_page() -> None:
    rig = Rig(vllm(9))
    await rig.scrape()

    await rig.scrape(sglang(4), times=2)

    assert rig.endpoint.engine == "sglang"
    assert rig.endpoint.load.waiting_requests == 4
    assert rig.endpoint.scrape_error is None


async def test_a_named_engine_stays_whatever_the_page_says() -> None:
    rig = Rig(vllm(9), engine="vllm")
    await rig.scrape(sglang(4), times=3)

    assert rig.endpoint.engine == "vllm"
    assert rig.endpoint.load.waiting_requests == 0


async def test_a_page_that_moved_is_found_again_after_a_while() -> None:
    rig = Rig(vllm())
    await rig.scrape()
    rig.pages.at["/v1/metrics"] = page("num_requests_waiting 7\nnum_requests_running 1\n")

    await rig.scrape(NOT_FOUND, times=3)
    assert rig.endpoint.engine == "vllm"

    rig.clock.advance(LOCATE_AGAIN_AFTER_S)
    await rig.scrape(times=2)
    assert rig.endpoint.engine == "nim"
    assert rig.endpoint.load.waiting_requests == 7


async def test_a_restart_in_place_forgets_the_old_numbers_even_while_the_new_page_cannot_be_read() -> None:
    rig = Rig(page("vllm:num_requests_waiting 9\n", process_start="1700000000"), engine="vllm")
    await rig.scrape(times=2)
    assert rig.endpoint.load.waiting_requests == 9

    await rig.scrape(page("<html>", process_start="1800000000"))

    assert rig.endpoint.scrape_error is not None
    assert rig.endpoint.metrics is None
    assert rig.endpoint.load.waiting_requests == 0


async def test_a_restart_is_also_seen_by_the_start_of_the_process_on_the_page() -> None:
    rig = Rig(vllm(9, more="process_start_time_seconds 1.7e+09"))
    forgotten: list[float] = []
    rig.endpoint = rig.scraper.endpoint = _Watched(rig.endpoint.spec, forgotten)
    await rig.scrape(times=2)
    await rig.scrape(vllm(9))
    assert forgotten == []

    await rig.scrape(vllm(1, more="process_start_time_seconds 1.8e+09"), times=3)

    assert len(forgotten) == 1


class _Watched(Endpoint):
    """Notes when its numbers are forgotten."""

    def __init__(self, about: EndpointSpec, forgotten: list[float]) -> None:
        super().__init__(about)
        self._forgotten = forgotten

    def forget_metrics(self) -> None:
        self._forgotten.append(self.load.waiting_requests)
        super().forget_metrics()


async def test_no_news_keeps_the_last_values_as_fresh_as_the_answer() -> None:
    steps = '[{"iter": 7, "numActiveRequests": 2, "numQueuedRequests": 5}]'
    rig = Rig(page(steps))
    await rig.scrape()
    rig.endpoint.count_pick()

    await rig.scrape(page("[]"), times=20)

    assert rig.endpoint.load.waiting_requests == 6
    assert rig.endpoint.scrape_error is None
    age_s = rig.endpoint.metrics_age_s(rig.clock.now_s)
    assert age_s == pytest.approx(0.05)


async def test_the_own_rhythm_of_a_page_is_kept() -> None:
    rig = Rig(page("lmdeploy:num_requests_waiting 1\n"))
    await rig.scrape()

    assert (rig.endpoint.scrape_interval_s or 0) >= 1.0


async def test_a_value_that_cannot_be_right_is_left_out_and_counted() -> None:
    rig = Rig(vllm(2, more="vllm:kv_cache_usage_perc -0.3875"))
    await rig.scrape()

    assert rig.endpoint.metrics is not None
    assert rig.endpoint.metrics.kv_cache_usage_ratio is None
    assert rig.counted.discarded == ["negative"]


async def test_what_a_version_of_an_engine_does_not_give_is_told_once() -> None:
    rig = Rig(vllm())
    await rig.scrape(times=READS_TO_TELL_LACK * 3)

    ((_, event, fields),) = rig.lines.told
    assert event == LACKING
    assert fields["quantities"] == ["KV-cache usage"]


async def test_a_bug_in_reading_a_page_is_told_and_the_next_scrape_goes_on() -> None:
    rig = Rig(KeyError("oops"))
    await rig.scrape()
    await rig.scrape(vllm(1))

    assert ("10.0.0.1:8000", "internal") in rig.counted.failed
    assert rig.lines.told[0][:2] == ("error", FAILING)
    assert rig.endpoint.load.waiting_requests == 1


async def test_an_engine_name_that_nobody_knows_makes_no_call() -> None:
    rig = Rig(vllm(), engine="vlm")
    await rig.scrape(times=3)

    assert rig.pages.asked == []
    assert "expected one of vllm" in (rig.endpoint.scrape_error or "")


async def test_a_search_that_asks_several_places_counts_for_the_rate_of_the_pool() -> None:
    rig = Rig(page("node_cpu_seconds_total 1\n"))
    await rig.scrape()
    assert rig.pace.requests_per_scrape == len(rig.pages.asked) > 3

    await rig.scrape(vllm(), times=2)
    assert rig.pace.requests_per_scrape == 1


async def test_a_refused_connection_keeps_the_values_too() -> None:
    rig = Rig(vllm(5))
    await rig.scrape()
    await rig.scrape(REFUSED)

    assert rig.endpoint.load.waiting_requests == 5
    assert "refused" in (rig.endpoint.scrape_error or "")


async def test_an_endpoint_that_refuses_connections_gets_only_probes_until_it_takes_them() -> None:
    """Field reports 13 and 40: a refused connection counts at once, and recovery restores the endpoint."""
    rig = Rig(vllm())
    await rig.scrape()
    await rig.scrape(REFUSED)
    once = rig.endpoint.health.demoted_because
    await rig.scrape(REFUSED)
    twice = rig.endpoint.health.demoted_because
    await rig.scrape(vllm())

    assert (once, twice) == (None, "refuses connections")
    assert rig.endpoint.health.demoted_because is None
    assert rig.endpoint.ramps_up_from_s > 1000.0


async def test_a_metrics_port_of_its_own_that_refuses_says_nothing_about_the_serving_port() -> None:
    rig = Rig(REFUSED, metrics=MetricsTarget(port=9400))
    rig.pages.at = {"/metrics": REFUSED}
    await rig.scrape(times=5)

    assert rig.endpoint.health.demoted_because is None


async def test_a_label_names_the_engine() -> None:
    rig = Rig(vllm(1, 2), labels={"llm-d.ai/engine-type": "vllm"})
    await rig.scrape()

    assert rig.endpoint.engine == "vllm"
    assert rig.pages.asked == ["10.0.0.1:8000/metrics"]


@pytest.mark.parametrize("outcome", [NOT_FOUND, page("<html>")], ids=["no such page", "garbage"])
async def test_a_server_without_a_readable_page_comes_back_once_it_takes_connections(outcome: Outcome) -> None:
    """Field report 40: recovery restores it, also where its metrics never tell."""
    rig = Rig(REFUSED)
    await rig.scrape(times=2)
    refusing = rig.endpoint.health.demoted_because
    await rig.scrape(outcome)

    assert refusing == "refuses connections"
    assert rig.endpoint.health.demoted_because is None


async def test_refusals_with_a_timeout_between_are_not_in_a_row() -> None:
    rig = Rig(REFUSED)
    await rig.scrape()
    await rig.scrape(TOO_SLOW)
    await rig.scrape(REFUSED)

    assert rig.endpoint.health.demoted_because is None


async def test_what_reading_takes_of_this_process_is_counted_and_what_others_use_meanwhile_is_not() -> None:
    rig = Rig(page("node_cpu_seconds_total 1\n"), cpu_s=count(0.0, 0.5).__next__)
    await rig.scrape()
    reads = len(rig.pages.asked)

    assert rig.pace.own_s == pytest.approx(0.5 * (reads + 1))  # each wait takes one step of the clock, which is not ours
    assert (rig.endpoint.scrape_interval_s or 0) >= 20 * rig.pace.own_s


async def test_a_page_with_too_much_on_it_is_an_error_and_the_last_values_stay() -> None:
    rig = Rig(vllm(3))
    await rig.scrape()
    await rig.scrape(page("vllm:num_requests_waiting 1\n" * (MOST_LINES + 1)))

    assert rig.endpoint.load.waiting_requests == 3
    assert "found more" in (rig.endpoint.scrape_error or "")
