"""What the picker reads from model servers' metrics pages: engines, names, ports, ranks."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream
from tests.flows.harness import (
    EppProcess,
    endpoint_entry,
    start_all,
    start_direct,
    start_pair,
    start_upstreams,
    wait_until,
    write_entries,
)

PAGES = Path(__file__).parents[1] / "scrape" / "expositions"
NO_SCRAPING = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, scrape: {enabled: false}}"
BODY = b'{"model": "m", "prompt": "x"}'


def page(name: str) -> bytes:
    return (PAGES / f"{name}.txt").read_bytes()


@pytest.mark.parametrize("idle", ["vllm", "sglang", "llamacpp"])
async def test_three_engines_in_one_pool_are_ranked_by_load_without_labels(idle: str) -> None:
    """Field report 39: the engine is recognised from the page, and the idle one is picked."""
    engines = ("vllm", "sglang", "llamacpp")
    async with start_upstreams(3) as upstreams:
        for upstream, engine in zip(upstreams, engines, strict=True):
            upstream.page = page(f"{engine}-idle" if engine == idle else f"{engine}-saturated")
        async with start_direct(upstreams) as (epp, client):
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
        async with start_direct(upstreams) as (epp, client):
            picks = await client.picks(40)
            without_load = await epp.metric("epp_endpoints_without_load_metrics")
            running = await epp.number(upstreams[1].endpoint, "running_requests")

    assert without_load == 1
    assert running is None
    assert set(picks) <= {upstream.endpoint for upstream in upstreams}


async def test_old_and_new_metric_names_are_read_in_one_pool() -> None:
    """Field report 38: the KV-cache gauge of vLLM was renamed."""
    async with start_upstreams(2) as upstreams:
        old, new = upstreams
        old.page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.75\n"
        new.page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"
        async with start_direct(upstreams) as (epp, client):
            usage = [await epp.number(upstream.endpoint, "kv_cache_usage_ratio") for upstream in upstreams]
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
        async with start_direct(upstreams) as (epp, client):
            waiting = await epp.number(double.endpoint, "waiting_requests")
            running = await epp.number(double.endpoint, "running_requests")
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
            running = await scene.epp.number(serving.endpoint, "running_requests")

    assert running == 0
    assert serving.metrics_hits == 0
    assert exporter.metrics_hits > 0
    assert servers == {serving.name}


async def test_the_metrics_port_and_path_of_all_may_be_set_by_flags() -> None:
    """Field report 44."""
    async with start_upstreams(2) as (serving, exporter):
        exporter.running_requests = 3
        flags = ("--model-server-metrics-port", str(exporter.port), "--model-server-metrics-path", "/internal/metrics")
        async with start_direct([serving], *flags) as (epp, _):
            running = await epp.number(serving.endpoint, "running_requests")

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


async def test_the_load_on_a_page_steers_within_a_few_scrapes() -> None:
    async with start_upstreams(3) as upstreams, start_direct(upstreams) as (epp, client):
        for idle in upstreams:
            for upstream in upstreams:
                upstream.running_requests = 0 if upstream is idle else 9
            for upstream in upstreams:
                await wait_until(lambda at=upstream: _is_read(epp, at), "the page to be read")  # type: ignore[misc]
            assert await client.picks(10) == {idle.endpoint: 10}


async def _is_read(epp: EppProcess, upstream: Upstream) -> bool:
    return await epp.number(upstream.endpoint, "running_requests") == upstream.running_requests
