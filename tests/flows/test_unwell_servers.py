"""Model servers that are slow, silent, frozen, stuck, failing or gone, and what the picker makes of them."""

import asyncio
import time
from collections import Counter

import pytest

from tests.fakes.ext_proc_client import ExtProcClient
from tests.fakes.upstream import Upstream
from tests.flows.harness import EppProcess, Setting, start_all, start_direct, start_upstreams, wait_until

KIND = "apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig"
STALE_S = 0.3
QUICKLY_STALE = ("--refresh-metrics-interval", "50ms", "--metrics-staleness-threshold", f"{STALE_S}s")
SHORT_TIMEOUT = f"{{{KIND}, scrape: {{timeout: 200ms}}}}"
BODY = b'{"model": "m", "prompt": "x"}'


async def test_a_server_that_answers_no_scrape_while_it_works_gets_a_fair_share() -> None:
    """Field report 42: a timeout means busy, not dead and not idle; the own count goes on."""
    async with start_all(3, epp_arguments=("--config-text", SHORT_TIMEOUT)) as scene:
        silent = scene.upstreams[0]
        silent.page_hangs_while_busy = True

        async def client() -> list[str]:
            return [(await scene.fetch(body=BODY)).json()["server"] for _ in range(10)]

        for upstream in scene.upstreams:
            upstream.delay_s = 0.1
        served = [server for servers in await asyncio.gather(*(client() for _ in range(9))) for server in servers]
        most = silent.most_active_requests
        state = (await scene.epp.pool())[silent.endpoint]["state"]

    assert len(served) == 90
    assert 15 <= served.count(silent.name) <= 45
    assert most <= 6
    assert state == "ready"


@pytest.mark.parametrize(("others", "at_most"), [((2, 4), 0), ((3, 3), 60)])
async def test_a_server_whose_metrics_froze_at_idle_is_at_best_average(others: tuple[int, int], at_most: int) -> None:
    """Field report 33: past the staleness threshold an endpoint is never the best.

    Among two with equal load it may have about a third (40 of 120, at most 60 in all likelihood); it never beats the
    better one of two that differ.
    """
    async with start_upstreams(3) as upstreams:
        frozen = upstreams[0]
        upstreams[1].running_requests, upstreams[2].running_requests = others
        async with start_direct(upstreams, *QUICKLY_STALE, "--config-text", SHORT_TIMEOUT) as (epp, client):
            assert await client.picks(10) == {frozen.endpoint: 10}
            frozen.page_answers.clear()

            async def is_stale() -> bool:
                age_s = await epp.number(frozen.endpoint, "metrics_age_s")
                return age_s is not None and age_s > 0.4

            await wait_until(is_stale, "the metrics to be stale")
            picks: Counter[str] = Counter()
            while picks.total() < 120:
                picks += await picks_while_fresh(epp, client, upstreams[1:])

    assert picks[frozen.endpoint] <= at_most
    assert picks.total() == 120


async def picks_while_fresh(epp: EppProcess, client: ExtProcClient, others: list[Upstream]) -> Counter[str]:
    """Ten picks; none when on a busy machine the pages of the others may have been late meanwhile, for then all are average."""
    asked_at_s = time.monotonic()
    pool = await epp.pool()
    oldest_s = max(pool[upstream.endpoint]["metrics_age_s"] or STALE_S for upstream in others)
    picks = await client.picks(10)
    return picks if oldest_s + time.monotonic() - asked_at_s < STALE_S else Counter()


async def test_a_server_that_is_down_makes_few_log_lines_and_one_when_it_is_back() -> None:
    """Field report 45: one line a change, not one an attempt."""
    async with start_upstreams(3) as upstreams:
        down = upstreams[0]
        async with start_direct(upstreams) as (epp, _):
            await down.stop()

            async def failed_often() -> bool:
                return (await epp.metric("epp_scrape_errors_total", endpoint=down.endpoint) or 0) >= 6

            await wait_until(failed_often, "six scrapes in vain", 20)
            lines_down = [record for record in epp.log_records() if down.endpoint in str(record)]
            await down.start()

            async def is_read_again() -> bool:
                return (await epp.pool())[down.endpoint]["scrape_error"] is None

            await wait_until(is_read_again, "its page to be read again")
            await wait_until(lambda: _mentions(epp, down) > len(lines_down), "a line on the return")
            hits = down.metrics_hits
            await wait_until(lambda: down.metrics_hits > hits + 5, "more scrapes")
            lines = _mentions(epp, down)
            others = _mentions(epp, upstreams[1]) + _mentions(epp, upstreams[2])

    assert 1 <= len(lines_down) <= 5
    assert lines == len(lines_down) + 1
    assert others == 0


def _mentions(epp: EppProcess, upstream: Upstream) -> int:
    return sum(upstream.endpoint in str(record) for record in epp.log_records())


async def test_a_slow_page_is_read_seldom_and_a_fast_one_at_the_full_rate() -> None:
    """Field report 36: a page of 30 ms, rendered on the loop that streams tokens, may cost 2 % of its time."""
    window_s = 4.0
    async with start_upstreams(2) as upstreams:
        slow, fast = upstreams
        slow.page_delay_s = 0.03
        async with start_direct(upstreams) as (epp, _):

            async def has_settled() -> bool:
                return (await epp.number(slow.endpoint, "scrape_interval_s") or 0) > 1.0

            await wait_until(has_settled, "the slow page's interval to be longer than a second")
            before, began_s = (slow.metrics_hits, fast.metrics_hits), time.monotonic()
            await asyncio.sleep(window_s)  # the rate is what is measured
            took_s = time.monotonic() - began_s
            slow_rate, fast_rate = (slow.metrics_hits - before[0]) / took_s, (fast.metrics_hits - before[1]) / took_s

    assert slow_rate <= 2.0
    assert fast_rate >= 5.0, "20 a second on a machine with time to spare"


async def test_a_failing_server_gets_few_requests_until_it_is_well_again() -> None:
    """Field report 40: it fails fast and so looks idle; a trickle probes it, a success restores it."""
    async with start_all(4) as scene:
        failing = scene.upstreams[0]
        failing.status = 503
        for upstream in scene.upstreams[1:]:
            upstream.delay_s = 0.02
        await fetch_many(scene, 80)
        before = len(failing.received)
        await fetch_many(scene, 100)
        share_while_failing = len(failing.received) - before
        failing.status, failing.delay_s = 200, 0.02

        async def is_back() -> bool:
            await fetch_many(scene, 20)
            return (await scene.epp.pool())[failing.endpoint]["demoted_because"] is None

        await wait_until(is_back, "the server to be back in rotation", 30)
        before = len(failing.received)
        await fetch_many(scene, 100)
        share_afterwards = len(failing.received) - before

    assert share_while_failing < 5
    assert share_afterwards >= 8


async def fetch_many(scene: Setting, count: int) -> None:
    """Requests from four clients."""

    async def client() -> None:
        for _ in range(count // 4):
            await scene.fetch(body=BODY)

    await asyncio.gather(*(client() for _ in range(4)))


async def test_a_stuck_server_gets_nothing_but_probes() -> None:
    """Field report 41: it takes requests and never answers, while its metrics say that nothing runs."""
    configuration = f"{{{KIND}, health: {{stallAfter: 1s}}}}"
    async with start_all(3, epp_arguments=("--config-text", configuration)) as scene:
        stuck = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(9, body=BODY):
                assert scene.shares() == [3, 3, 3]
                for upstream in scene.upstreams[1:]:
                    upstream.gate.set()

                async def is_demoted() -> bool:
                    return (await scene.epp.pool())[stuck.endpoint]["demoted_because"] is not None

                await wait_until(is_demoted, "the stuck server to be demoted")
                servers = [(await scene.fetch(body=BODY)).json()["server"] for _ in range(30)]
            others = [endpoint["demoted_because"] for endpoint in (await scene.epp.pool()).values()][1:]

    assert stuck.name not in servers
    assert others == [None, None]
