"""What the picker makes of model servers' metrics pages, with all the ways in which those behave."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.ext_proc_client import ExtProcClient
from tests.fakes.upstream import Upstream
from tests.flows.harness import (
    EppProcess,
    Setting,
    endpoint_arguments,
    endpoint_entry,
    start_all,
    start_pair,
    start_upstreams,
    wait_until,
    write_entries,
)

PAGES = Path(__file__).parents[1] / "scrape" / "expositions"
KIND = "apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig"
NO_SCRAPING = f"{{{KIND}, scrape: {{enabled: false}}}}"
QUICKLY_STALE = ("--refresh-metrics-interval", "50ms", "--metrics-staleness-threshold", "300ms")
SHORT_TIMEOUT = f"{{{KIND}, scrape: {{timeout: 200ms}}}}"
BODY = b'{"model": "m", "prompt": "x"}'


@asynccontextmanager
async def start_epp(upstreams: Sequence[Upstream], *arguments: str) -> AsyncIterator[tuple[EppProcess, ExtProcClient]]:
    """A picker of these endpoints, and a client that asks it directly."""
    async with (
        EppProcess(*endpoint_arguments(upstreams), *arguments) as epp,
        ExtProcClient(str(epp.grpc)) as client,
    ):
        yield epp, client


def page(name: str) -> bytes:
    return (PAGES / f"{name}.txt").read_bytes()


async def number(epp: EppProcess, upstream: Upstream, key: str) -> float | None:
    """A number of the pool page."""
    value: float | None = (await epp.pool())[upstream.endpoint][key]
    return value


async def wait_for_number(epp: EppProcess, upstream: Upstream, key: str, value: float) -> None:
    async def has_it() -> bool:
        return await number(epp, upstream, key) == value

    await wait_until(has_it, f"{key} of {upstream.name} to be {value}")


@pytest.mark.parametrize("idle", ["vllm", "sglang", "llamacpp"])
async def test_three_engines_in_one_pool_are_ranked_by_load_without_labels(idle: str) -> None:
    """Field report 39: the engine is recognised from the page, and the idle one is picked."""
    engines = ("vllm", "sglang", "llamacpp")
    async with start_upstreams(3) as upstreams:
        for upstream, engine in zip(upstreams, engines, strict=True):
            upstream.page = page(f"{engine}-idle" if engine == idle else f"{engine}-saturated")
        async with start_epp(upstreams) as (epp, client):
            picks = await client.picks(20)
            found = [endpoint["engine"] for endpoint in (await epp.pool()).values()]
            without_load = await epp.metric("epp_endpoints_without_load_metrics")

    assert picks == {upstreams[engines.index(idle)].endpoint: 20}
    assert found == list(engines)
    assert without_load == 0


async def test_an_endpoint_whose_page_tells_no_load_is_counted_as_such() -> None:
    """Field report 39: the gauge, and the endpoint is used by own counts."""
    async with start_upstreams(2) as upstreams:
        upstreams[1].page = b"# TYPE python_info gauge\npython_info 1\n"
        async with start_epp(upstreams) as (epp, client):
            picks = await client.picks(40)
            without_load = await epp.metric("epp_endpoints_without_load_metrics")
            running = await number(epp, upstreams[1], "running_requests")

    assert without_load == 1
    assert running is None
    assert set(picks) <= {upstream.endpoint for upstream in upstreams}


async def test_old_and_new_metric_names_are_read_in_one_pool() -> None:
    """Field report 38: the KV-cache gauge of vLLM was renamed."""
    async with start_upstreams(2) as upstreams:
        old, new = upstreams
        old.page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.75\n"
        new.page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"
        async with start_epp(upstreams) as (epp, client):
            usage = [await number(epp, upstream, "kv_cache_usage_ratio") for upstream in upstreams]
            picks = await client.picks(20)

    assert usage == [0.75, 0.25]
    assert picks == {new.endpoint: 20}


async def test_several_engines_on_one_page_are_added_up() -> None:
    """Field report 37: the idle engine does not hide the busy one."""
    async with start_upstreams(2) as upstreams:
        double, single = upstreams
        double.page = b"".join(
            b'vllm:num_requests_running{engine="%d"} %d\nvllm:num_requests_waiting{engine="%d"} %d\n' % (e, running, e, waiting)
            for e, running, waiting in ((0, 3, 0), (1, 4, 25))
        )
        single.waiting_requests, single.running_requests = 10, 7
        async with start_epp(upstreams) as (epp, client):
            waiting = await number(epp, double, "waiting_requests")
            running = await number(epp, double, "running_requests")
            picks = await client.picks(20)

    assert (running, waiting) == (7, 25)
    assert picks == {single.endpoint: 20}


async def test_metrics_may_have_their_own_port_and_path(tmp_path: Path) -> None:
    """Field report 44: by the endpoints file, for one endpoint alone."""
    file = tmp_path / "endpoints.json"
    async with start_upstreams(3) as (serving, other, exporter):
        exporter.page = page("vllm-idle")
        other.running_requests = 5
        metrics = {"port": exporter.port, "path": "/internal/metrics"}
        write_entries(file, [endpoint_entry(serving, metrics=metrics), endpoint_entry(other)])
        async with start_pair([serving, other], "--endpoints-file", str(file)) as scene:
            servers = {(await scene.fetch(body=BODY)).json()["server"] for _ in range(10)}
            running = await number(scene.epp, serving, "running_requests")

    assert running == 0
    assert serving.metrics_hits == 0
    assert exporter.metrics_hits > 0
    assert servers == {serving.name}


async def test_the_metrics_port_and_path_of_all_may_be_set_by_flags() -> None:
    """Field report 44."""
    async with start_upstreams(2) as (serving, exporter):
        exporter.running_requests = 3
        flags = ("--model-server-metrics-port", str(exporter.port), "--model-server-metrics-path", "/internal/metrics")
        async with start_epp([serving], *flags) as (epp, _):
            running = await number(epp, serving, "running_requests")

    assert running == 3
    assert serving.metrics_hits == 0


async def test_without_scraping_no_metrics_page_is_ever_asked_for() -> None:
    """Field report 43: own counts alone keep the load even."""
    async with start_all(8, epp_arguments=("--config-text", NO_SCRAPING)) as scene:
        with scene.gates_closed():
            async with scene.at_once(40, body=BODY) as requests:
                shares = scene.shares()
                endpoints = (await scene.epp.pool()).values()
                scene.open_gates()
                answers = await asyncio.gather(*requests)
        await scene.epp.wait_idle()

    assert shares == [5] * 8
    assert all(answer.status == 200 for answer in answers)
    assert [upstream.metrics_hits for upstream in scene.upstreams] == [0] * 8
    assert {endpoint["running_requests"] for endpoint in endpoints} == {None}


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
        async with start_epp(upstreams, *QUICKLY_STALE, "--config-text", SHORT_TIMEOUT) as (epp, client):
            assert await client.picks(10) == {frozen.endpoint: 10}
            frozen.page_answers.clear()

            async def is_stale() -> bool:
                age_s = await number(epp, frozen, "metrics_age_s")
                return age_s is not None and age_s > 0.4

            await wait_until(is_stale, "the metrics to be stale")
            picks = await client.picks(120)

    assert picks[frozen.endpoint] <= at_most
    assert picks.total() == 120


async def test_a_server_that_is_down_makes_few_log_lines_and_one_when_it_is_back() -> None:
    """Field report 45: one line a change, not one an attempt."""
    async with start_upstreams(3) as upstreams:
        down = upstreams[0]
        async with start_epp(upstreams) as (epp, _):
            await down.stop()

            async def failed_often() -> bool:
                return (await epp.metric("epp_scrape_errors_total", endpoint=down.endpoint) or 0) >= 6

            await wait_until(failed_often, "six scrapes in vain", 20)
            lines_down = [record for record in epp.log_records() if down.endpoint in str(record)]
            await down.start()
            await wait_for_number(epp, down, "running_requests", 0)
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
        async with start_epp(upstreams) as (epp, _):

            async def has_settled() -> bool:
                return (await number(epp, slow, "scrape_interval_s") or 0) > 1.0

            await wait_until(has_settled, "the slow page's interval to be longer than a second")
            before, began_s = (slow.metrics_hits, fast.metrics_hits), time.monotonic()
            await asyncio.sleep(window_s)  # the rate is what is measured
            took_s = time.monotonic() - began_s
            slow_rate, fast_rate = (slow.metrics_hits - before[0]) / took_s, (fast.metrics_hits - before[1]) / took_s

    assert slow_rate <= 2.0
    assert fast_rate >= 5.0, "20 a second on a machine with time to spare"


async def test_the_load_on_a_page_steers_within_a_few_scrapes() -> None:
    async with start_upstreams(3) as upstreams, start_epp(upstreams) as (epp, client):
        for idle in upstreams:
            for upstream in upstreams:
                upstream.running_requests = 0 if upstream is idle else 9
            for upstream in upstreams:
                await wait_for_number(epp, upstream, "running_requests", upstream.running_requests)
            assert await client.picks(10) == {idle.endpoint: 10}


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
