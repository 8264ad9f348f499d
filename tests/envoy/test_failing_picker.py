"""What happens to requests when the endpoint picker is dead, dies, or is replaced."""

import asyncio
import re
from functools import partial

import grpc
import pytest
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from epp.envoy.config import bootstrap
from epp.envoy.options import EnvoyOptions, HostPort
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import as_yaml, seconds
from tests.demo.ports import kept_free
from tests.envoy.certificates import self_signed
from tests.envoy.rig import LONG_S, patient, picker_cluster, start_rig
from tests.fakes.ext_proc_server import Behaviour, ExtProcServer, Message
from tests.fakes.http1_client import Answer, fetch
from tests.fakes.upstream import Upstream
from tests.flows.harness import FREE_PORT, start_envoy, wait_until

NOBODY = 1  # a port where nothing listens
REQUESTS = ({"body": b""}, {"body": b"x" * 1000}, {"body": b"x" * 1_000_000}, {"method": "GET"}, {"pieces": [b"a", b"b"]})


@pytest.mark.parametrize(("fail_open", "status"), [(False, 500), (True, 503)])
async def test_without_picker_and_fallback_every_request_is_refused_at_once(fail_open: bool, status: int) -> None:
    """Field report 80: fail-open alone has nowhere to send a request."""
    # With these, whatever waits for a connection or for a picker's reply waits for longer than the client does.
    longer_s = 10 * LONG_S
    async with start_envoy(NOBODY, fail_open=fail_open, connect_timeout_s=longer_s, message_timeout_s=longer_s) as envoy:
        for request in REQUESTS:
            answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", **request)
            assert answer.status == status


async def test_with_a_fallback_small_and_large_bodies_reach_a_server() -> None:
    """Field report 80: a configuration that truly fails open."""
    async with Upstream("one") as one, Upstream("two") as two:
        fallback = [HostPort.parse(server.endpoint) for server in (one, two)]
        async with start_envoy(NOBODY, fail_open=True, fallback=fallback) as envoy:
            for request in REQUESTS * 8:  # that one of two servers gets none of 40 happens once in 10^12 runs
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
            async with kept_free(rig.picker.port):
                await wait_until(
                    lambda: _is_served_by(rig.fetch(body=b"x" * 1000), "fallback"), "the fallback to take over", LONG_S
                )
                async with ExtProcServer(Behaviour(destination=picked.endpoint), port=rig.picker.port):
                    await wait_until(
                        lambda: _is_served_by(rig.fetch(body=b"x" * 1000), "picked"), "the picker to be back", LONG_S
                    )

    assert before.json()["server"] == "picked"


async def test_a_picker_that_is_not_serving_is_passed_over_when_another_serves() -> None:
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint)
        async with ExtProcServer(behaviour) as draining, ExtProcServer(behaviour) as serving:
            draining.serving = False
            async with start_envoy(draining.port, serving.port, adapt=patient) as envoy:
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
    """Field report 77: no two seconds of errors while Envoy still tries the dead replica.

    Envoy is to know by the first connection that breaks or is refused. So its health checks come too late here, and what it
    knows it knows for good, as a second is nothing on a busy machine.
    """
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint)
        async with (
            ExtProcServer(behaviour) as one,
            ExtProcServer(behaviour) as two,
            start_envoy(one.port, two.port, adapt=_rests_a_picker_for_good) as envoy,
        ):
            listen = envoy.listener()
            running: list[asyncio.Task[Answer]] = []

            def begin() -> None:
                number = len(running)
                headers, body = [("x-number", str(number))], b"x" * (200_000 if number % 2 else 100)
                running.append(
                    asyncio.create_task(fetch(listen.host, listen.port, "/x", timeout_s=LONG_S, headers=headers, body=body))
                )

            upstream.gate.clear()  # so that streams are with both pickers when one is lost
            while min(len(one.streams), len(two.streams)) <= 5:
                before = len(upstream.received)
                begin()
                await wait_until(partial(_is_taken, running[-1], upstream, before), "the server to have the request", LONG_S)
            settled = len(running)
            for _ in range(20):  # these are anywhere on their way
                begin()
                await asyncio.sleep(0.001)
            were_with_it, were_with_the_other = _numbers(one), _numbers(two)
            await one.stop()
            async with asyncio.timeout(LONG_S):
                while not await _rests_one(envoy):
                    begin()
                    await asyncio.sleep(0.01)
            known = len(running)
            upstream.gate.set()
            for _ in range(60):
                begin()
                await asyncio.sleep(0.01)
            answers = await asyncio.gather(*running)
            with_the_other = _numbers(two)

    bad = {number for number, answer in enumerate(answers) if answer.status != 200}
    assert {number for number in bad if number < settled} <= were_with_it
    assert not bad & (were_with_the_other | with_the_other)
    assert not [number for number in bad if number >= known]  # the moment of the loss is over when Envoy knows


def _rests_a_picker_for_good(configuration: Bootstrap) -> None:
    """Once Envoy has found a picker broken it leaves it alone for a day; it checks health at its own start only."""
    patient(configuration)
    picker = picker_cluster(configuration)
    (check,), detection = picker.health_checks, picker.outlier_detection
    assert detection is not None
    check.interval = check.no_traffic_interval = seconds(86_400)
    detection.base_ejection_time = detection.max_ejection_time = seconds(86_400)


async def _rests_one(envoy: EnvoyProcess) -> bool:
    """Whether Envoy has left out a picker because a stream to it, or a connection, broke."""
    ejected = "cluster.endpoint_picker.outlier_detection.ejections_active"
    return (await envoy.stats(ejected)).get(ejected) == 1


def _numbers(picker: ExtProcServer) -> set[int]:
    """Which requests the picker was asked about."""
    return {int(stream.headers["x-number"]) for stream in picker.streams if stream.headers}


async def test_a_picker_that_dies_amid_a_body_never_shortens_it() -> None:
    async with Upstream() as upstream:
        behaviour = Behaviour(destination=upstream.endpoint, hold_headers=True)
        async with (
            ExtProcServer(behaviour) as one,
            ExtProcServer(behaviour) as two,
            start_envoy(one.port, two.port, adapt=patient) as envoy,
        ):
            listen = envoy.listener()
            pieces = [bytes([97 + number]) * 20_000 for number in range(5)]
            slowly = partial(fetch, listen.host, listen.port, "/x", timeout_s=LONG_S, pieces=pieces, gap_s=0.05)
            running = [asyncio.create_task(slowly()) for _ in range(6)]
            while not (_reads_a_body(one) and _reads_a_body(two)):
                running.append(asyncio.create_task(slowly()))
                await asyncio.sleep(0.02)
            await one.stop()
            answers = await asyncio.gather(*running)

    assert {answer.status for answer in answers} <= {200, 500}
    assert all(request.body == b"".join(pieces) for request in upstream.received)
    assert len(upstream.received) == sum(answer.status == 200 for answer in answers) > 0


def _reads_a_body(picker: ExtProcServer) -> bool:
    """Whether it is now amid one."""
    return any(stream.ended is None and _is_amid(stream.body("request_body")) for stream in picker.streams)


def _is_amid(body: list[Message]) -> bool:
    return bool(body) and not body[-1].end_of_stream


async def test_pick_only_serves_more_requests_at_once_than_envoy_allows_streams() -> None:
    """Field report 32: with Envoy's limit for the picker as low as four, forty long answers are all served."""
    options = EnvoyOptions(listen=FREE_PORT, admin=FREE_PORT, epp_tls=False, original_dst=True, pick_only=True)
    assert await _count_good(options) == 40


async def test_with_response_phases_the_limit_of_streams_is_the_limit_of_requests() -> None:
    """Field report 32: why the limits are raised, and why there is a pick-only mode."""
    assert await _count_good(EnvoyOptions(listen=FREE_PORT, admin=FREE_PORT, epp_tls=False, original_dst=True)) < 40


def _is_taken(task: asyncio.Task[Answer], upstream: Upstream, before: int) -> bool:
    return task.done() or len(upstream.received) > before


async def _count_good(options: EnvoyOptions) -> int:
    """How many of forty answers, begun one after another and all held, are 200 while the picker may have only four streams."""
    async with Upstream() as upstream, ExtProcServer(Behaviour(destination=upstream.endpoint)) as picker:
        text = as_yaml(bootstrap(options)).replace("port_value: 9002", f"port_value: {picker.port}")
        head, picker_cluster, rest = re.split(r"(- name: endpoint_picker\n.*?)(?=  - name: picked)", text, flags=re.DOTALL)
        async with EnvoyProcess(head + picker_cluster.replace("40000", "4") + rest) as envoy:
            running = []
            upstream.gate.clear()
            for _ in range(40):
                listen = envoy.listener()
                before = len(upstream.received)
                task = asyncio.create_task(fetch(listen.host, listen.port, "/held", timeout_s=LONG_S, body=b"{}"))
                running.append(task)
                await wait_until(partial(_is_taken, task, upstream, before), "a server or a refusal", LONG_S)
            upstream.gate.set()
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
