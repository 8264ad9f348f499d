"""What a real Envoy makes of endpoints and endpoint pickers that die, drain or come back, with the configuration as printed.

Most of these use `epp serve` for the picks and for the list of endpoints. Where a test must know what is named, a stand-in
picks, and `epp serve` still tells the list.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from epp.eds.names import MODEL_SERVERS
from epp.envoy.model_servers import FIRST_LIST_S, LISTS_CLUSTER
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import seconds
from tests.demo.ports import kept_free
from tests.fakes.ext_proc_server import Behaviour, ExtProcServer
from tests.fakes.http1_client import Answer, fetch
from tests.fakes.upstream import Upstream
from tests.flows.harness import (
    PATIENCE_S,
    EppProcess,
    Setting,
    endpoint_arguments,
    patient_health_check,
    start_envoy,
    start_pair,
    start_upstreams,
    wait_until,
    write_endpoints,
)

NOT_SCRAPED = ("--config-text", "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, scrape: {enabled: false}}")
BODY = b'{"model": "m", "prompt": "x"}'
BODIES = (b"", BODY, b"x" * 1_000, b"x" * 1_000_000)
MANY = 40
"""Requests of which each server of a few gets some: that one of two gets none happens once in 10^11 runs."""


def cluster_of(configuration: Bootstrap, name: str) -> Cluster:
    assert configuration.static_resources is not None
    (cluster,) = [each for each in configuration.static_resources.clusters if each.name == name]
    return cluster


async def members(envoy: EnvoyProcess, kind: str) -> int:
    """How many endpoints Envoy knows: `total`, `healthy`, `degraded` or `excluded`."""
    name = f"cluster.{MODEL_SERVERS}.membership_{kind}"
    return (await envoy.stats(name)).get(name, 0)


async def wait_for_members(envoy: EnvoyProcess, number: int, kind: str = "total") -> None:
    async def is_so() -> bool:
        return await members(envoy, kind) == number

    await wait_until(is_so, f"Envoy to know {number} endpoints ({kind})")


async def retries(envoy: EnvoyProcess) -> int:
    """Requests that were sent once more."""
    name = f"cluster.{MODEL_SERVERS}.upstream_rq_retry"
    return (await envoy.stats(name))[name]


async def send(envoy: EnvoyProcess, count: int, **request: Any) -> list[Answer]:
    """So many requests one after the other."""
    listen = envoy.listener()
    return [await fetch(listen.host, listen.port, **{"path": "/x", "body": BODY, **request}) for _ in range(count)]


def servers(answers: Sequence[Answer]) -> set[str]:
    """Who answered; all of it must be well."""
    assert [answer.status for answer in answers] == [200] * len(answers)
    return {answer.json()["server"] for answer in answers}


@asynccontextmanager
async def naming(
    upstreams: Sequence[Upstream], *named: Upstream | str, **options: Any
) -> AsyncIterator[tuple[EnvoyProcess, EppProcess]]:
    """An Envoy whose pick always names the same endpoints; the list of all of them comes from `epp serve`."""
    destination = ",".join(each if isinstance(each, str) else each.endpoint for each in named)
    async with (
        EppProcess(*endpoint_arguments(upstreams), *NOT_SCRAPED) as epp,
        ExtProcServer(Behaviour(destination=destination)) as picker,
    ):

        def lists_from_epp(configuration: Bootstrap) -> None:
            patient_health_check(configuration)
            assignment = cluster_of(configuration, LISTS_CLUSTER).load_assignment
            assert assignment is not None
            endpoint = assignment.endpoints[0].lb_endpoints[0].endpoint
            assert endpoint is not None
            assert endpoint.address is not None
            assert endpoint.address.socket_address is not None
            endpoint.address.socket_address.port_value = epp.grpc.port

        async with start_envoy(picker.port, original_dst=False, adapt=lists_from_epp, **options) as envoy:
            yield envoy, epp


@asynccontextmanager
async def failing_over(upstreams: list[Upstream], *arguments: str, **options: Any) -> AsyncIterator[Setting]:
    """`epp serve` and an Envoy, as `epp envoy-config` has it by default."""
    options = {"adapt": patient_health_check, **options}
    async with start_pair(upstreams, *(arguments or endpoint_arguments(upstreams)), original_dst=False, **options) as scene:
        yield scene


# ── endpoints that die ──


@pytest.mark.parametrize("dead", [1, 2])
async def test_when_the_first_named_refuse_the_next_named_answers_within_the_request(
    upstreams: list[Upstream], dead: int
) -> None:
    """Field reports 13 and 87."""
    for upstream in upstreams[:dead]:
        await upstream.stop()
    async with naming(upstreams, *upstreams[:dead], upstreams[dead]) as (envoy, _):
        answers = await send(envoy, MANY)
        repeated = await retries(envoy)

    assert servers(answers) == {upstreams[dead].name}
    assert repeated == dead * MANY


async def test_when_all_that_are_named_refuse_another_answers(upstreams: list[Upstream]) -> None:
    await upstreams[0].stop()
    async with naming(upstreams, upstreams[0]) as (envoy, _):
        answers = await send(envoy, MANY)

    assert servers(answers) == {upstreams[1].name, upstreams[2].name}


async def test_an_address_that_is_not_in_the_pool_is_passed_over(upstreams: list[Upstream]) -> None:
    async with naming(upstreams, "192.0.2.1:8000", upstreams[1]) as (envoy, _):
        answers = await send(envoy, 10)
        repeated = await retries(envoy)

    assert servers(answers) == {upstreams[1].name}
    assert repeated == 0


async def test_an_ipv6_endpoint_is_known_by_the_name_it_is_picked_by() -> None:
    async with start_upstreams(2, host="::1") as upstreams, naming(upstreams, upstreams[1]) as (envoy, _):
        assert servers(await send(envoy, MANY)) == {upstreams[1].name}


async def test_a_dead_server_among_three_loses_nothing_although_nobody_knows_it_yet(upstreams: list[Upstream]) -> None:
    """Field report 13: the picker does not scrape here, so it learns from the requests alone, and none is lost for that."""
    async with failing_over(upstreams, *endpoint_arguments(upstreams), *NOT_SCRAPED) as scene:
        await upstreams[0].stop()
        answers = await send(scene.envoy, MANY)
        repeated = await retries(scene.envoy)

    assert servers(answers) == {upstreams[1].name, upstreams[2].name}
    assert repeated > 0


@pytest.mark.parametrize(("size_bytes", "status"), [(500_000, 200), (3_000_000, 503)])
async def test_a_body_beyond_the_retry_buffer_is_not_repeated(upstreams: list[Upstream], size_bytes: int, status: int) -> None:
    """Field report 88: Envoy holds 1 MiB of a request; of a longer one the beginning is gone when the server breaks."""
    dying = upstreams[0]
    dying.gate.clear()
    async with naming(upstreams, dying, upstreams[1]) as (envoy, _):
        running = asyncio.create_task(send(envoy, 1, body=b"x" * size_bytes))
        await wait_until(lambda: dying.received, "the request at the server")
        await dying.stop()
        (answer,) = await running

    assert answer.status == status
    assert [len(request.body) for request in upstreams[1].received] == ([size_bytes] if status == 200 else [])


@pytest.mark.parametrize(("retry", "statuses"), [(True, {200}), (False, {503})])
async def test_requests_without_an_answer_byte_are_answered_by_another_server(
    upstreams: list[Upstream], retry: bool, statuses: set[int]
) -> None:
    """Ten requests are at a server that crashes; whether they may be repeated is a choice."""
    dying = upstreams[0]
    dying.gate.clear()
    async with naming(upstreams, dying, upstreams[1], retry_unanswered=retry) as (envoy, _):
        running = [asyncio.create_task(send(envoy, 1)) for _ in range(10)]
        await wait_until(lambda: len(dying.received) == 10, "ten requests at the server")
        await dying.stop()
        answers = [answer for (answer,) in await asyncio.gather(*running)]

    assert {answer.status for answer in answers} == statuses
    assert len(upstreams[1].received) == (10 if retry else 0)
    assert upstreams[2].received == []


async def test_a_stream_that_had_begun_ends_with_a_clean_error_and_the_next_request_is_well(upstreams: list[Upstream]) -> None:
    dying = upstreams[0]
    dying.gate.clear()
    async with naming(upstreams, dying, upstreams[1]) as (envoy, _):
        begun = asyncio.Event()
        running = asyncio.create_task(send(envoy, 1, path="/held", on_piece=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        await dying.stop()
        (answer,) = await asyncio.wait_for(running, PATIENCE_S)
        after = await send(envoy, 1)

    assert answer.status == 200
    assert answer.cut
    assert answer.body.count(b"data: ") == 1
    assert servers(after) == {upstreams[1].name}


@pytest.mark.parametrize(("retry", "status"), [(True, 200), (False, 503)])
async def test_a_busy_answer_is_repeated_elsewhere_only_by_choice(upstreams: list[Upstream], retry: bool, status: int) -> None:
    upstreams[0].status = 503
    async with naming(upstreams, upstreams[0], upstreams[1], retry_busy=retry) as (envoy, _):
        (answer,) = await send(envoy, 1)

    assert answer.status == status


# ── endpoints that drain or leave ──


@pytest.mark.parametrize("leaves", [False, True])
async def test_streams_on_an_endpoint_that_drains_or_leaves_finish(
    upstreams: list[Upstream], leaves: bool, tmp_path: Path
) -> None:
    """Both ways it gets nothing new, and what it has ends well."""
    file = tmp_path / "endpoints.json"
    write_endpoints(file, upstreams)
    async with failing_over(upstreams, "--endpoints-file", str(file)) as scene:
        for upstream in upstreams:
            upstream.gate.clear()
        async with scene.at_once(12, "/held", body=BODY) as running:
            held = [len(upstream.received) for upstream in upstreams]
            assert all(held)
            if leaves:
                write_endpoints(file, upstreams[1:])
                await wait_for_members(scene.envoy, 2)
            else:
                write_endpoints(file, upstreams, draining=upstreams[:1])
                await wait_for_members(scene.envoy, 2, "healthy")
            for upstream in upstreams[1:]:
                upstream.gate.set()
            new = servers(await send(scene.envoy, MANY))
            upstreams[0].gate.set()
            answers = await asyncio.gather(*running)

    assert [answer.body.endswith(b"[DONE]\n\n") for answer in answers] == [True] * 12
    assert new == {upstreams[1].name, upstreams[2].name}
    assert len(upstreams[0].received) == held[0]


# ── endpoint pickers that die ──


async def test_without_a_picker_requests_go_on_over_the_endpoints_last_heard_of(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    """Field report 80: small and large bodies; nothing goes to the endpoint that drains."""
    file = tmp_path / "endpoints.json"
    write_endpoints(file, upstreams, draining=upstreams[:1])
    async with failing_over(upstreams, "--endpoints-file", str(file)) as scene:
        assert await members(scene.envoy, "total") == 3
        await scene.epp.kill()
        await wait_until(partial(goes_on, scene.envoy), "requests to go on without a picker")
        answers = [answer for body in BODIES for answer in await send(scene.envoy, MANY // 2, body=body)]
        received = [len(upstream.received) for upstream in upstreams]

    assert servers(answers) == {upstreams[1].name, upstreams[2].name}
    assert {answer.json()["body_bytes"] for answer in answers} == {len(body) for body in BODIES}
    assert received[0] == 0


async def goes_on(envoy: EnvoyProcess) -> bool:
    """Whether one request of each size is answered."""
    return all([(await send(envoy, 1, body=body))[0].status == 200 for body in BODIES])


async def test_without_a_picker_endpoints_that_failed_get_nothing_while_others_are_well(upstreams: list[Upstream]) -> None:
    failing = upstreams[0]
    failing.status = 500
    async with failing_over(upstreams) as scene:

        async def is_demoted() -> bool:
            await send(scene.envoy, 3)
            return await members(scene.envoy, "degraded") == 1

        await wait_until(is_demoted, "the failing server to be demoted, and Envoy to know it")
        await scene.epp.kill()
        failing.status = 200
        await wait_until(partial(goes_on, scene.envoy), "requests to go on without a picker")
        answers = await send(scene.envoy, MANY)

    assert servers(answers) == {upstreams[1].name, upstreams[2].name}


async def test_without_a_picker_a_dead_server_loses_nothing(upstreams: list[Upstream]) -> None:
    async with failing_over(upstreams) as scene:
        await scene.epp.kill()
        await wait_until(partial(goes_on, scene.envoy), "requests to go on without a picker")
        await upstreams[0].stop()
        answers = await send(scene.envoy, MANY)

    assert servers(answers) == {upstreams[1].name, upstreams[2].name}


async def test_a_picker_that_comes_back_picks_again_and_tells_the_endpoints(upstreams: list[Upstream], tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    write_endpoints(file, upstreams[:2])
    async with failing_over(upstreams, "--endpoints-file", str(file)) as scene:
        port = scene.epp.grpc.port
        await scene.epp.kill()
        async with kept_free(port):
            await wait_until(partial(goes_on, scene.envoy), "requests to go on without a picker")
            write_endpoints(file, upstreams[1:])
            async with EppProcess("--endpoints-file", str(file), "--grpc-port", str(port)) as again:

                async def picks() -> bool:
                    await send(scene.envoy, 1)
                    return '"request_id"' in (await again.get("/api/v1/picks"))[1]

                await wait_until(picks, "the picker to be asked again")

                async def knows_the_new_ones() -> bool:
                    return servers(await send(scene.envoy, MANY)) == {upstreams[1].name, upstreams[2].name}

                await wait_until(knows_the_new_ones, "Envoy to follow the list of the new picker", 4 * PATIENCE_S)
                await wait_for_members(scene.envoy, 2)


def with_a_short_wait(configuration: Bootstrap) -> None:
    """As printed: Envoy starts without a list when none comes."""
    patient_health_check(configuration)
    eds = cluster_of(configuration, MODEL_SERVERS).eds_cluster_config
    assert eds is not None
    assert eds.eds_config is not None
    eds.eds_config.initial_fetch_timeout = seconds(FIRST_LIST_S)


async def test_an_envoy_that_starts_without_a_picker_refuses_requests_until_one_comes(upstreams: list[Upstream]) -> None:
    async with EppProcess(*endpoint_arguments(upstreams)) as first:
        port = first.grpc.port
    async with kept_free(port), start_envoy(port, original_dst=False, adapt=with_a_short_wait) as envoy:
        refused = [answer.status for body in BODIES for answer in await send(envoy, 1, body=body)]
        async with EppProcess(*endpoint_arguments(upstreams), "--grpc-port", str(port)):
            await wait_until(partial(goes_on, envoy), "requests to be served")

    assert refused == [503] * len(BODIES)


async def test_an_envoy_waits_for_a_picker_that_does_not_know_its_pool_yet(upstreams: list[Upstream], tmp_path: Path) -> None:
    """Envoy hears nothing rather than an empty list, which would make it forget what it knows."""
    file = tmp_path / "endpoints.json"
    write_endpoints(file, upstreams)
    async with failing_over(upstreams, "--endpoints-file", str(file)) as scene:
        port = scene.epp.grpc.port
        await scene.epp.kill()
        async with (
            kept_free(port),
            EppProcess(*_nowhere(tmp_path), "--grpc-port", str(port), ready=False),
        ):
            await wait_until(partial(follows_a_list, scene.envoy), "Envoy to have a stream for lists again")
            known = await members(scene.envoy, "total")

    assert known == 3


def _nowhere(folder: Path) -> list[str]:
    """A picker with an API server where nobody listens: it is up and never learns its endpoints."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    file = folder / "kubeconfig"
    file.write_bytes(msgspec.json.encode(config))
    return ["--kubeconfig", str(file), "--pool-name", "p", "--pool-namespace", "default"]


async def follows_a_list(envoy: EnvoyProcess) -> bool:
    """Whether Envoy has a stream for lists now."""
    name = f"cluster.{LISTS_CLUSTER}.upstream_rq_active"
    return (await envoy.stats(name)).get(name) == 1


def kill(epp: EppProcess) -> None:
    epp.terminate(signal.SIGKILL)


def terminate(epp: EppProcess) -> None:
    epp.terminate(signal.SIGTERM)


@pytest.mark.parametrize("end", [kill, terminate])
async def test_of_two_pickers_the_end_of_one_costs_at_most_what_was_with_it(
    upstreams: list[Upstream], end: Callable[[EppProcess], None], tmp_path: Path
) -> None:
    """Field report 77: requests that begin when Envoy knows are all well, and so are all of them when it ends as it should."""
    file = tmp_path / "endpoints.json"
    write_endpoints(file, upstreams[:2])
    arguments = ("--endpoints-file", str(file))
    async with (
        EppProcess(*arguments) as one,
        EppProcess(*arguments) as two,
        start_envoy(one.grpc.port, two.grpc.port, original_dst=False, adapt=patient_health_check) as envoy,
    ):
        stop = asyncio.Event()

        async def client() -> list[Answer]:
            answers = []
            while not stop.is_set():
                answers += await send(envoy, 1)
            return answers

        clients = [asyncio.create_task(client()) for _ in range(4)]
        await wait_until(partial(both_pick, one, two), "both to pick")
        end(one)
        await one.wait()
        await wait_until(partial(only_one_lives, envoy), "Envoy to know")
        during = asyncio.create_task(send(envoy, MANY))
        after = servers(await during)
        stop.set()
        answers = [answer for each in await asyncio.gather(*clients) for answer in each]
        write_endpoints(file, upstreams)
        await wait_for_members(envoy, 3)

    failed = [answer for answer in answers if answer.status != 200]
    assert after == {upstreams[0].name, upstreams[1].name}
    assert len(failed) <= (len(clients) if end is kill else 0)


async def both_pick(*pickers: EppProcess) -> bool:
    return all([(await picker.get("/api/v1/picks?limit=1"))[1].count("request_id") for picker in pickers])


async def only_one_lives(envoy: EnvoyProcess) -> bool:
    name = "cluster.endpoint_picker.membership_healthy"
    return (await envoy.stats(name))[name] == 1
