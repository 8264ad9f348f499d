"""Streams that end with the pick: long answers must not use up what Envoy allows per cluster."""

import asyncio

import pytest
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import CircuitBreakers, CircuitBreakersThresholds

from epp.envoy.options import BodyMode
from tests.flows.harness import start_all, wait_until

ALLOWED_STREAMS = 20
CLIENTS = 5 * ALLOWED_STREAMS
BODY = b'{"model": "m", "prompt": "x"}'


def allow_few_streams(configuration: Bootstrap) -> None:
    """As Envoy's default of 1,024 for a cluster, at a size that is quick."""
    assert configuration.static_resources is not None
    (cluster,) = [c for c in configuration.static_resources.clusters if c.name == "endpoint_picker"]
    limits = CircuitBreakersThresholds(max_connections=1024, max_pending_requests=1024, max_requests=ALLOWED_STREAMS)
    cluster.circuit_breakers = CircuitBreakers(thresholds=[limits])


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED])
async def test_in_pick_only_mode_more_answers_run_than_streams_are_allowed(mode: BodyMode) -> None:
    """Field report 32: the ext_proc stream ends with the request."""
    async with start_all(4, adapt=allow_few_streams, pick_only=True, request_body_mode=mode) as scene:
        with scene.gates_closed():
            requests = []
            for part in range(10):
                requests += [asyncio.create_task(scene.fetch("/held", body=BODY)) for _ in range(CLIENTS // 10)]
                await wait_until(
                    lambda part=part: scene.active_requests == (part + 1) * (CLIENTS // 10),  # type: ignore[misc]
                    "the requests at the model servers",
                )
            shares = scene.shares()
            scene.open_gates()
            answers = await asyncio.gather(*requests)
        await scene.epp.wait_idle()

    assert [answer.status for answer in answers] == [200] * CLIENTS
    assert all(answer.body.endswith(b"[DONE]\n\n") for answer in answers)
    assert min(shares) >= 2, shares  # nothing is counted past the pick: chance spreads them


async def test_with_all_phases_the_same_limit_refuses_requests() -> None:
    """Field report 32, from the other side: this is what the documented limit is for."""
    async with start_all(4, adapt=allow_few_streams) as scene:
        with scene.gates_closed():
            async with scene.at_once(ALLOWED_STREAMS, "/held", body=BODY) as held:
                refused = await asyncio.gather(*(scene.fetch(body=BODY) for _ in range(5)))
                scene.open_gates()
                answers = await asyncio.gather(*held)
        await scene.epp.wait_idle()

    assert all(answer.status >= 500 for answer in refused)
    assert all(answer.status == 200 for answer in answers)


async def test_the_configuration_that_is_printed_allows_more_than_envoys_default() -> None:
    """Field report 32: 1,100 requests at once, beyond Envoy's default of 1,024 for a cluster."""
    async with start_all(4) as scene:
        with scene.gates_closed():
            async with scene.at_once(1100, "/held", body=BODY) as held:
                in_flight = await scene.epp.in_flight()
                scene.open_gates()
                answers = await asyncio.gather(*held)
        await scene.epp.wait_idle()

    assert in_flight == 1100
    assert {answer.status for answer in answers} == {200}
