"""When the picker says that it is ready, and to whom; and when it refuses to start."""

import asyncio
import subprocess
import sys
import time

import grpc
import grpc.aio
import pytest

from tests.fakes.ext_proc_client import ExtProcClient
from tests.flows.epp_process import ROOT, START_S
from tests.flows.harness import EppProcess, endpoint_arguments, start_upstreams, wait_until

KIND = "apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig"
SERVICES = ("", "envoy.service.ext_proc.v3.ExternalProcessor", "liveness", "readiness", "inference-extension")
HEALTH_ALIAS = f"{{{KIND}, health: {{aliases: [my-gateway]}}}}"
TIMEOUT_S = 3.0
"""Of one scrape; the first round may take two of them. Longer than a start takes."""


async def test_health_answers_for_every_name_that_gateways_ask_for_on_both_ports() -> None:
    """Field report 29."""
    async with (
        start_upstreams(1) as upstreams,
        EppProcess(*endpoint_arguments(upstreams), "--config-text", HEALTH_ALIAS) as epp,
    ):
        for address in (epp.grpc, epp.health):
            async with ExtProcClient(str(address)) as client:
                states = [await client.check(service) for service in (*SERVICES, "my-gateway")]
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await client.check("nobody-knows-this")
            assert states == ["SERVING"] * 6
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_serving_begins_after_the_first_scrape_round() -> None:
    """Field report 79: what came before would be picked blindly."""
    async with start_upstreams(3) as upstreams:
        slow = upstreams[0]
        slow.page_answers.clear()
        for upstream in upstreams:
            upstream.running_requests = 10
        slow.running_requests = 0
        async with (
            EppProcess(*endpoint_arguments(upstreams), ready=False) as epp,
            ExtProcClient(str(epp.grpc)) as client,
            ExtProcClient(str(epp.health)) as probe,
        ):
            await wait_until(lambda: all(upstream.metrics_hits for upstream in upstreams), "a scrape of each")
            before = [await client.check(service) for service in SERVICES]
            slow.page_answers.set()
            await wait_until(lambda: _serves(probe), "the health port to say SERVING")
            first = await client.pick()

    assert before == ["NOT_SERVING", "NOT_SERVING", "SERVING", "NOT_SERVING", "NOT_SERVING"]
    assert first == slow.endpoint, "the first pick knows the load of all"


async def _serves(client: ExtProcClient) -> bool:
    return await client.check("readiness") == "SERVING"


async def test_a_page_that_hangs_delays_serving_by_the_scrape_timeout_only() -> None:
    """Field report 79: the round may also time out; the first request is answered."""
    configuration = f"{{{KIND}, scrape: {{timeout: {TIMEOUT_S}s}}}}"
    async with start_upstreams(2) as upstreams:
        upstreams[0].page_answers.clear()
        began_s = time.monotonic()
        async with (
            EppProcess(*endpoint_arguments(upstreams), "--config-text", configuration, ready=False) as epp,
            ExtProcClient(str(epp.grpc)) as client,
        ):
            await wait_until(lambda: _serves(client), "readiness in spite of the page")
            took_s = time.monotonic() - began_s
            picks = {await client.pick() for _ in range(10)}

    assert took_s > TIMEOUT_S
    assert picks <= {upstream.endpoint for upstream in upstreams}


async def test_a_model_server_that_is_down_does_not_delay_serving() -> None:
    async with start_upstreams(2) as upstreams:
        await upstreams[0].stop()
        configuration = f"{{{KIND}, scrape: {{timeout: 1h}}}}"
        async with EppProcess(*endpoint_arguments(upstreams), "--config-text", configuration) as epp:
            pool = await epp.pool()

    assert pool[upstreams[0].endpoint]["scrape_error"]
    assert pool[upstreams[0].endpoint]["running_requests"] is None


async def test_an_end_before_the_beginning_is_an_end_like_any_other() -> None:
    """SIGTERM while the first scrape round still runs."""
    async with start_upstreams(1) as upstreams:
        upstreams[0].page_answers.clear()
        configuration = f"{{{KIND}, scrape: {{timeout: 1h}}}}"
        async with EppProcess(*endpoint_arguments(upstreams), "--config-text", configuration, ready=False) as epp:
            await wait_until(lambda: upstreams[0].metrics_hits, "the first scrape")
            epp.terminate()
            assert await epp.wait() == 0
            errors = epp.log_records("error")

    assert errors == []


REFUSED = {
    "no source": ([], ["--endpoints-file", "--endpoint", "--endpoints-dns"]),
    "two sources": (["--endpoint", "10.0.0.1:8000", "--endpoints-file", "x"], ["--endpoints-file", "--endpoint"]),
    "no such file": (["--endpoints-file", "no-such-file.yaml"], ["no-such-file.yaml"]),
    "an unknown flag": (["--endpoint", "10.0.0.1:8000", "--no-such-flag"], ["--no-such-flag"]),
    "a staleness threshold under three intervals": (  # Field report 34
        ["--endpoint", "10.0.0.1:8000", "--refresh-metrics-interval", "5s", "--metrics-staleness-threshold", "1s"],
        ["--metrics-staleness-threshold", "1s", "5s"],
    ),
    "a misspelt key": (
        ["--endpoint", "10.0.0.1:8000", "--config-text", f"{{{KIND}, limits: {{maxRequestBodyByte: 1}}}}"],
        ["limits", "maxRequestBodyByte", "maxRequestBodyBytes"],
    ),
    "no certificate": (["--endpoint", "10.0.0.1:8000", "--cert-path", "no-such-folder"], ["no-such-folder"]),
}


async def run_serve(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of an `epp serve` that must end by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve", "--host", "127.0.0.1", *arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(START_S):
            _, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_wrong_usage_ends_with_2_and_says_what_is_wrong() -> None:
    """Field reports 34 and 70: before anything is served."""
    ports = [word for flag in ("--grpc-port", "--grpc-health-port", "--metrics-port") for word in (flag, "0")]
    outcomes = await asyncio.gather(*(run_serve(*ports, *arguments) for arguments, _ in REFUSED.values()))

    for (what, (_, words)), (code, errors) in zip(REFUSED.items(), outcomes, strict=True):
        assert code == 2, (what, errors)
        assert "Traceback" not in errors, (what, errors)
        for word in words:
            assert word in errors, (what, word, errors)


async def test_a_port_in_use_ends_with_1_and_names_the_port() -> None:
    async with start_upstreams(1) as upstreams, EppProcess(*endpoint_arguments(upstreams)) as epp:
        for flag, port in (("--grpc-port", epp.grpc.port), ("--metrics-port", epp.metrics.port)):
            others = [word for name in ("--grpc-port", "--grpc-health-port", "--metrics-port") for word in (name, "0")]
            code, errors = await run_serve(*others, flag, str(port), *endpoint_arguments(upstreams))
            assert code == 1, errors
            assert str(port) in errors
            assert "Traceback" not in errors
