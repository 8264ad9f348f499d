"""Model servers that are slow, silent, frozen, stuck, failing or gone, and what the picker makes of them."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from epp.pool.health import PROBE_EVERY_PICKS, PROBE_EVERY_S
from tests.fakes.ext_proc_client import ExtProcClient
from tests.fakes.upstream import Upstream
from tests.flows.harness import PATIENCE_S, EppProcess, Setting, start_all, start_direct, start_upstreams, wait_until

KIND = "apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig"
STALE_S = 3.0
QUICKLY_STALE = ("--refresh-metrics-interval", "50ms", "--metrics-staleness-threshold", f"{STALE_S}s")
FROZEN_TIMEOUT = f"{{{KIND}, scrape: {{timeout: 1s}}}}"
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


@pytest.mark.parametrize(("others", "at_most"), [((2, 4), 0), ((3, 3), 75)])
async def test_a_server_whose_metrics_froze_at_idle_is_at_best_average(others: tuple[int, int], at_most: int) -> None:
    """Field report 33: past the staleness threshold an endpoint is never the best.

    Among two with equal load it may have about a third (40 of 120; more than 75 is less likely than one in a billion); it
    never beats the better one of two that differ.
    """
    async with start_upstreams(3) as upstreams:
        frozen = upstreams[0]
        upstreams[1].running_requests, upstreams[2].running_requests = others
        async with start_direct(upstreams, *QUICKLY_STALE, "--config-text", FROZEN_TIMEOUT) as (epp, client):
            picks: Counter[str] = Counter()
            while not picks:
                picks = await picks_while_fresh(epp, client, upstreams)
            assert picks == {frozen.endpoint: 10}
            frozen.page_answers.clear()

            async def is_stale() -> bool:
                endpoint = (await epp.pool())[frozen.endpoint]
                return endpoint["scrape_error"] is not None and endpoint["metrics_age_s"] > STALE_S + 0.1

            await wait_until(is_stale, "the metrics to be stale")
            picks = Counter()
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

            await wait_until(failed_often, "six scrapes in vain", 2 * PATIENCE_S)
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
    """Field report 36: a page of 100 ms, rendered on the loop that streams tokens, may cost 2 % of its time."""
    async with start_upstreams(2) as upstreams:
        slow, fast = upstreams
        slow.page_delay_s = 0.1
        async with start_direct(upstreams) as (epp, _):

            async def has_settled() -> bool:
                return (await epp.number(slow.endpoint, "scrape_interval_s") or 0) > 1.5

            await wait_until(has_settled, "the slow page's interval to be longer than a second and a half", 2 * PATIENCE_S)
            before = slow.metrics_hits
            await wait_until(lambda: slow.metrics_hits > before, "a scrape of the slow page", 4 * PATIENCE_S)
            fast_before, began_s = fast.metrics_hits, time.monotonic()
            await wait_until(lambda: slow.metrics_hits >= before + 3, "two more", 4 * PATIENCE_S)
            took_s, fast_hits = time.monotonic() - began_s, fast.metrics_hits - fast_before

    assert 2 * slow.page_delay_s / took_s <= 0.06, "2 %, and what belongs to a busy machine"
    assert fast_hits >= 2 * 2, "on a machine with time to spare 200"


async def test_a_failing_server_gets_few_requests_until_it_is_well_again() -> None:
    """Field report 40: it fails fast and so looks idle; a trickle probes it, a success restores it."""
    async with start_all(4) as scene:
        failing = scene.upstreams[0]
        failing.status = 503
        for upstream in scene.upstreams[1:]:
            upstream.delay_s = 0.02
        await fetch_many(scene, 80)
        before, began_s = len(failing.received), time.monotonic()
        await fetch_many(scene, 100)
        share_while_failing, took_s = len(failing.received) - before, time.monotonic() - began_s
        failing.status, failing.delay_s = 200, 0.02

        async def is_back() -> bool:
            await fetch_many(scene, 20)
            return (await scene.epp.pool())[failing.endpoint]["demoted_because"] is None

        await wait_until(is_back, "the server to be back in rotation", 4 * PATIENCE_S)
        with scene.gates_closed():
            async with scene.at_once(20, body=BODY):
                shares = scene.shares()

    assert share_while_failing <= 2 + 100 / PROBE_EVERY_PICKS + took_s / PROBE_EVERY_S, took_s
    assert shares[0] >= 2, shares  # half of the others' share, which grows


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
        stuck, *others = scene.upstreams
        began_s = time.monotonic()
        with scene.gates_closed():
            async with scene.at_once(9, body=BODY), AsyncExitStack() as stack:
                assert scene.shares() == [3, 3, 3]
                for upstream in others:
                    upstream.gate.set()

                async def is_alone_demoted() -> bool:
                    pool = await scene.epp.pool()
                    demoted = [address for address, endpoint in pool.items() if endpoint["demoted_because"] is not None]
                    return demoted == [stuck.endpoint]

                await wait_until(is_alone_demoted, "the stuck server to be demoted, and no other one")
                probes = 0
                for _ in range(30):
                    task = asyncio.create_task(scene.fetch(body=BODY))
                    stack.callback(task.cancel)
                    await wait_until(
                        lambda at=task, held=3 + probes: at.done() or stuck.active_requests > held,  # type: ignore[misc]
                        "an answer, or one request more at the stuck server",
                    )
                    probes += not task.done()
                took_s = time.monotonic() - began_s
                assert await is_alone_demoted()

    assert probes <= took_s / PROBE_EVERY_S, "one after each pause"
