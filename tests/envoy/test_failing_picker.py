"""What happens to requests when the endpoint picker is dead, dies, or is replaced."""

import asyncio
import re
import time
from functools import partial

import grpc
import pytest

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import as_yaml
from tests.envoy.certificates import self_signed
from tests.envoy.rig import start_rig
from tests.fakes.ext_proc_server import Behaviour, ExtProcServer
from tests.fakes.http1_client import Answer, fetch
from tests.fakes.upstream import Upstream
from tests.flows.harness import FREE_PORT, start_envoy, wait_until

NOBODY = 1  # a port where nothing listens
REQUESTS = ({"body": b""}, {"body": b"x" * 1000}, {"body": b"x" * 1_000_000}, {"method": "GET"}, {"pieces": [b"a", b"b"]})


@pytest.mark.parametrize(("fail_open", "status"), [(False, 500), (True, 503)])
async def test_without_picker_and_fallback_every_request_is_refused_at_once(fail_open: bool, status: int) -> None:
    """Field report 80: fail-open alone has nowhere to send a request."""
    async with start_envoy(NOBODY, fail_open=fail_open) as envoy:
        for request in REQUESTS:
            started_s = time.monotonic()
            answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", **request)
            assert answer.status == status
            assert time.monotonic() - started_s < 2


async def test_with_a_fallback_small_and_large_bodies_reach_a_server() -> None:
    """Field report 80: a configuration that truly fails open."""
    async with Upstream("one") as one, Upstream("two") as two:
        fallback = [HostPort.parse(server.endpoint) for server in (one, two)]
        async with start_envoy(NOBODY, fail_open=True, fallback=fallback) as envoy:
            for request in REQUESTS * 4:
                answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", **request)
                assert answer.status == 200
                assert answer.json()["body_bytes"] in (0, 2, 1000, 1_000_000)

    assert one.received
    assert two.received


async def test_the_fallback_is_used_only_while_no_picker_lives() -> None:
    async with Upstream("picked") as picked, Upstream("fallback") as fallback:
        options = {"fail_open": True, "fallback": [HostPort.parse(fallback.endpoint)]}
        async with start_rig(Behaviour(destination=picked.endpoint), **options) as rig:
            before = await rig.fetch(body=b"x" * 1000)
            await rig.picker.stop()
            await wait_until(lambda: _is_served_by(rig.fetch(body=b"x" * 1000), "fallback"), "the fallback to take over")
            async with ExtProcServer(Behaviour(destination=picked.endpoint), port=rig.picker.port):
                await wait_until(lambda: _is_served_by(rig.fetch(body=b"x" * 1000), "picked"), "the picker to be back")

    assert before.json()["server"] == "picked"


async def test_a_picker_that_is_not_serving_is_passed_over_when_another_serves() -> None:
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint)
        async with ExtProcServer(behaviour) as draining, ExtProcServer(behaviour) as serving:
            draining.serving = False
            async with start_envoy(draining.port, serving.port) as envoy:
                for _ in range(10):
                    assert (await fetch(envoy.listener().host, envoy.listener().port, "/x", body=b"x")).status == 200

    assert len(serving.streams) == 10
    assert draining.streams == []


async def test_a_single_picker_that_drains_is_still_asked() -> None:
    async with Upstream() as upstream, ExtProcServer(Behaviour(destination=upstream.endpoint)) as picker:
        picker.serving = False
        async with start_envoy(picker.port) as envoy:
            assert (await fetch(envoy.listener().host, envoy.listener().port, "/x", body=b"x")).status == 200


async def test_the_loss_of_one_of_two_pickers_costs_only_what_was_with_it() -> None:
    """Field report 77: no two seconds of errors while Envoy still tries the dead replica."""
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint)
        async with ExtProcServer(behaviour) as one, ExtProcServer(behaviour) as two, start_envoy(one.port, two.port) as envoy:
            listen = envoy.listener()
            running = []
            for number in range(100):
                body = b"x" * (200_000 if number % 2 else 100)
                running.append(asyncio.create_task(fetch(listen.host, listen.port, "/x", body=body)))
                await asyncio.sleep(0.01)
                if number == 40:
                    await one.stop()
            answers = await asyncio.gather(*running)
            asked = len(one.streams)

    bad = [number for number, answer in enumerate(answers) if answer.status != 200]
    assert asked > 5
    assert all(30 <= number <= 50 for number in bad), bad  # those sent in the moment of the loss, none later
    assert len(bad) <= 8, bad
    assert all(38 <= number <= 45 for number in bad), bad


async def test_a_picker_that_dies_amid_a_body_never_shortens_it() -> None:
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint, hold_headers=True)
        async with ExtProcServer(behaviour) as one, ExtProcServer(behaviour) as two, start_envoy(one.port, two.port) as envoy:
            listen = envoy.listener()
            pieces = [bytes([97 + number]) * 20_000 for number in range(5)]
            running = [asyncio.create_task(fetch(listen.host, listen.port, "/x", pieces=pieces, gap_s=0.05)) for _ in range(6)]
            await wait_until(lambda: [p for p in (one, two) if _reads_bodies(p)], "bodies to be under way")
            await next(picker for picker in (one, two) if _reads_bodies(picker)).stop()
            answers = await asyncio.gather(*running)

    assert {answer.status for answer in answers} <= {200, 500}
    assert all(request.body == b"".join(pieces) for request in upstream.received)
    assert len(upstream.received) == sum(answer.status == 200 for answer in answers) > 0


def _reads_bodies(picker: ExtProcServer) -> bool:
    return any(stream.body("request_body") for stream in picker.streams)


async def test_pick_only_serves_more_requests_at_once_than_envoy_allows_streams() -> None:
    """Field report 32: with Envoy's limit for the picker as low as four, forty long answers are all served."""
    options = EnvoyOptions(listen=FREE_PORT, admin=FREE_PORT, epp_tls=False, pick_only=True)
    assert await _count_good(options) == 40


async def test_with_response_phases_the_limit_of_streams_is_the_limit_of_requests() -> None:
    """Field report 32: why the limits are raised, and why there is a pick-only mode."""
    assert await _count_good(EnvoyOptions(listen=FREE_PORT, admin=FREE_PORT, epp_tls=False)) < 40


def _is_taken(task: asyncio.Task[Answer], upstream: Upstream, before: int) -> bool:
    return task.done() or len(upstream.received) > before


async def _count_good(options: EnvoyOptions) -> int:
    """How many of forty answers of 0.6 s, begun one after another, are 200 while the picker may have only four streams."""
    async with Upstream() as upstream, ExtProcServer(Behaviour(destination=upstream.endpoint)) as picker:
        text = as_yaml(bootstrap(options)).replace("port_value: 9002", f"port_value: {picker.port}")
        head, picker_cluster, rest = re.split(r"(- name: endpoint_picker\n.*?)(?=  - name: picked)", text, flags=re.DOTALL)
        async with EnvoyProcess(head + picker_cluster.replace("40000", "4") + rest) as envoy:
            running = []
            for _ in range(40):
                listen = envoy.listener()
                before = len(upstream.received)
                task = asyncio.create_task(fetch(listen.host, listen.port, "/sse?events=6&gap_ms=100", body=b"{}"))
                running.append(task)
                await wait_until(partial(_is_taken, task, upstream, before), "a server or a refusal")
            answers: list[Answer] = await asyncio.gather(*running)
    return sum(answer.status == 200 and answer.body.endswith(b"[DONE]\n\n") for answer in answers)


async def test_any_certificate_of_the_picker_is_accepted_unless_a_ca_is_given(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    signed, other = self_signed("epp.example"), self_signed("epp.example")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "ca").write_bytes(signed.certificate)
    (folder / "other").write_bytes(other.certificate)
    credentials = grpc.ssl_server_credentials([(signed.key, signed.certificate)])

    async with Upstream() as upstream, ExtProcServer(Behaviour(destination=upstream.endpoint), tls=credentials) as picker:
        for choices, status in (
            ({}, 200),
            ({"epp_ca": str(folder / "ca")}, 200),
            ({"epp_ca": str(folder / "ca"), "epp_server_name": "epp.example"}, 200),
            ({"epp_ca": str(folder / "other")}, 500),
        ):
            async with start_envoy(picker.port, epp_tls=True, adapt=None, **choices) as envoy:
                answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", body=b"x")
                assert answer.status == status, choices
        checked = set(picker.health_checks)

    assert {request[2:] for request in checked} == {b"envoy.service.ext_proc.v3.ExternalProcessor"}


async def _is_served_by(answer: "asyncio.Future[Answer] | object", name: str) -> bool:
    got = await answer  # type: ignore[misc]
    return bool(got.status == 200 and got.json()["server"] == name)
