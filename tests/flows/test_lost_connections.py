"""Model servers that refuse connections, break them off, or cut their answers; what a real Envoy tells, and what comes of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
from envoy_data_plane.envoy.extensions.load_balancing_policies.round_robin import v3 as round_robin

from epp.envoy.clusters import DESTINATION_HEADER, PICKED_CLUSTER
from epp.envoy.options import HostPort
from epp.envoy.typed import address, typed
from epp.pool.health import CUT, PROBE_EVERY_S
from tests.fakes.http1_client import Answer
from tests.fakes.upstream import Upstream
from tests.flows.harness import (
    PATIENCE_S,
    Setting,
    endpoint_arguments,
    start_all,
    start_pair,
    start_upstreams,
    wait_until,
)

WITHOUT_SCRAPES = ("--config-text", "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, scrape: {enabled: false}}")
BODY = b'{"model": "m", "prompt": "x"}'
TOLD = {
    "refuses": "refused a connection",
    "breaks off": "broke off a connection before it answered",
}


def without_attributes(configuration: Bootstrap) -> None:
    """Another operator's Envoy, which does not tell who made an answer."""
    manager = _manager(configuration)
    ext_proc_filter = manager.http_filters[0]
    settings: Any = ext_proc_filter.typed_config
    message: ext_proc.ExternalProcessor = settings.unpack()
    assert message.response_attributes
    message.response_attributes = []
    ext_proc_filter.typed_config = typed(message)
    _put_back(configuration, manager)


def walks_lists(upstreams: list[Upstream], configuration: Bootstrap) -> None:
    """A cluster that tries the named endpoints one after the other."""
    assert configuration.static_resources is not None
    (picked,) = [each for each in configuration.static_resources.clusters if each.name == PICKED_CLUSTER]
    hosts = [
        endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address(HostPort(each.host, each.port)))) for each in upstreams
    ]
    fallback = cluster.LoadBalancingPolicy(policies=[_policy("round_robin", round_robin.RoundRobin())])
    policy = override_host.OverrideHost(
        override_host_sources=[override_host.OverrideHostOverrideHostSource(header=DESTINATION_HEADER)],
        fallback_policy=fallback,
    )
    picked.type = cluster.ClusterDiscoveryType.STATIC
    picked.lb_policy = cluster.ClusterLbPolicy.LOAD_BALANCING_POLICY_CONFIG
    picked.original_dst_lb_config = None
    picked.load_balancing_policy = cluster.LoadBalancingPolicy(policies=[_policy("override_host", policy)])
    picked.load_assignment = endpoint.ClusterLoadAssignment(
        cluster_name=PICKED_CLUSTER, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)]
    )
    manager = _manager(configuration)
    assert manager.route_config is not None
    for each in manager.route_config.virtual_hosts[0].routes:
        assert each.route is not None
        each.route.retry_policy = route.RetryPolicy(retry_on="connect-failure,refused-stream,reset", num_retries=2)
    _put_back(configuration, manager)


def _policy(name: str, message: Any) -> cluster.LoadBalancingPolicyPolicy:
    return cluster.LoadBalancingPolicyPolicy(
        typed_extension_config=core.TypedExtensionConfig(
            name=f"envoy.load_balancing_policies.{name}", typed_config=typed(message)
        )
    )


def _manager(configuration: Bootstrap) -> hcm.HttpConnectionManager:
    assert configuration.static_resources is not None
    settings: Any = configuration.static_resources.listeners[0].filter_chains[0].filters[0].typed_config
    message: hcm.HttpConnectionManager = settings.unpack()
    return message


def _put_back(configuration: Bootstrap, manager: hcm.HttpConnectionManager) -> None:
    assert configuration.static_resources is not None
    configuration.static_resources.listeners[0].filter_chains[0].filters[0].typed_config = typed(manager)


@asynccontextmanager
async def away(upstream: Upstream, how: str) -> AsyncIterator[None]:
    """The server is gone meanwhile: nobody listens at its port, or something that hangs up on everybody."""
    await upstream.stop()
    if how == "refuses":
        yield
    else:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), upstream.host, upstream.port)
        yield
        server.close()
        await server.wait_closed()
    await upstream.start()


async def demoted_because(scene: Setting, upstream: Upstream) -> str | None:
    why: str | None = (await scene.epp.pool())[upstream.endpoint]["demoted_because"]
    return why


async def come_back(scene: Setting, upstream: Upstream) -> list[int]:
    """Requests until it has its share again; their statuses."""
    statuses: list[int] = []

    async def is_back() -> bool:
        statuses.extend([(await scene.fetch(body=BODY)).status for _ in range(10)])
        return await demoted_because(scene, upstream) is None

    await wait_until(is_back, "the server to be back in rotation", 4 * PATIENCE_S)
    return statuses


@pytest.mark.parametrize("adapt", [None, without_attributes], ids=["attributes", "text"])
@pytest.mark.parametrize("how", ["refuses", "breaks off"])
async def test_one_lost_connection_is_enough_to_go_elsewhere(how: str, adapt: Callable[[Bootstrap], None] | None) -> None:
    """Field report 13: it counts against the endpoint at once, though no scrape tells of it."""
    async with start_all(3, epp_arguments=WITHOUT_SCRAPES, adapt=adapt) as scene:
        gone = scene.upstreams[0]
        async with away(gone, how):

            async def is_met() -> bool:
                return (await scene.fetch(body=BODY)).status == 503

            await wait_until(is_met, "a request to be sent to the server that is gone")
            why, began_s = await demoted_because(scene, gone), time.monotonic()
            statuses = [(await scene.fetch(body=BODY)).status for _ in range(30)]
            took_s = time.monotonic() - began_s
        await come_back(scene, gone)

    assert why == TOLD[how]
    assert statuses.count(503) <= took_s / PROBE_EVERY_S, "probes"


async def test_a_list_that_is_walked_loses_no_request_to_a_dead_server_nor_to_its_probes() -> None:
    """Field reports 13 and 87: the next endpoint answers, the count moves there, and the dead one is passed over."""
    async with (
        start_upstreams(3) as upstreams,
        start_pair(
            upstreams,
            *endpoint_arguments(upstreams),
            *WITHOUT_SCRAPES,
            adapt=partial(walks_lists, upstreams),
            endpoints_named=3,
        ) as scene,
    ):
        gone = upstreams[0]
        async with away(gone, "refuses"):
            with scene.gates_closed():
                async with scene.at_once(6, "/held", body=BODY) as requests:

                    async def counts_are_right() -> bool:
                        pool = await scene.epp.pool()
                        return [pool[each.endpoint]["in_flight_requests"] for each in upstreams] == scene.shares()

                    await wait_until(counts_are_right, "each count to be where the request is")
                    shares, why = scene.shares(), await demoted_because(scene, gone)
                    scene.open_gates()
                    held = [answer.status for answer in await asyncio.gather(*requests)]
            began_s = time.monotonic()
            while_gone: list[int] = []
            while len(while_gone) < 100 or time.monotonic() < began_s + 1.5:  # time and picks enough for a probe
                while_gone.append((await scene.fetch(body=BODY)).status)
        afterwards = await come_back(scene, gone)
        await scene.epp.wait_idle()
        mismatches = await scene.epp.metric("epp_served_mismatch_total")

    assert shares[0] == 0
    assert sum(shares) == 6
    assert why == "failed a request that went on to another endpoint"
    assert set(held + while_gone + afterwards) == {200}
    assert not mismatches, "a second try is what the list is for"


@pytest.mark.parametrize("by", ["server", "clients"])
async def test_answers_that_are_cut_together_take_a_server_out_until_a_scrape_says_that_it_lives(by: str) -> None:
    """Envoy tells the same of a server that dies and of clients that leave: so it is a suspicion that ends by itself."""
    async with start_all(2) as scene:
        cutting, other = scene.upstreams
        at: dict[str, list[asyncio.Task[Answer]]] = {cutting.name: [], other.name: []}
        begun = 0

        def begin() -> asyncio.Task[Answer]:
            def has_come(name: bytes) -> None:
                nonlocal begun
                begun += 1
                at[name.decode()].append(task)

            task = asyncio.create_task(scene.fetch("/cut", on_piece=has_come, body=BODY))
            return task

        tasks = [begin() for _ in range(4)]
        await wait_until(lambda: begun == 4, "four answers to begin")
        cutting.page_answers.clear()
        hits = cutting.metrics_hits
        await wait_until(lambda: cutting.metrics_hits > hits, "a scrape to wait for its page")
        for task in at[cutting.name]:
            if by == "clients":
                task.cancel()
            else:
                cutting.steps.release()
        await wait_until(partial(is_suspected, scene, cutting), "the server to be suspected")
        servers = {(await scene.fetch(body=BODY)).json()["server"] for _ in range(10)}
        cutting.page_answers.set()

        async def is_believed() -> bool:
            return await demoted_because(scene, cutting) is None

        await wait_until(is_believed, "a scrape to tell that it lives")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert [len(each) for each in at.values()] == [2, 2]
    assert servers == {other.name}


async def is_suspected(scene: Setting, upstream: Upstream) -> bool:
    return await demoted_because(scene, upstream) == CUT
