"""`/metrics`."""

import asyncio
import gzip

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from epp.telemetry.outcome import RequestOutcome
from epp.telemetry.picker_metrics import Build
from tests.admin.running import Admin, serving
from tests.fakes.pool import spec, tell

PRESENT_AND_FED = (
    "epp_pick_duration_seconds_count",
    "epp_body_read_duration_seconds_count",
    "epp_scrape_duration_seconds_count",
    "epp_scrape_errors_total",
    "epp_endpoint_metrics_age_seconds",
    "epp_endpoints",
    "epp_endpoint_in_flight_requests",
    "inference_pool_per_pod_queue_size",
    "inference_pool_average_queue_size",
    "inference_objective_request_total",
    "inference_objective_request_duration_seconds_count",
    "inference_extension_scheduler_attempts_total",
    "llm_d_epp_request_total",
    "llm_d_epp_ready_endpoints",
    "process_cpu_seconds_total",
)


def traffic(admin: Admin) -> None:
    """A hundred requests over two endpoints that live; the third is dead."""
    admin.pool.sync([spec(1), spec(2), spec(3)])
    live, other, dead = admin.pool.endpoints
    for endpoint in (live, other):
        tell(endpoint, admin.clock, waiting_requests=2.0, running_requests=3.0, kv_cache_usage_ratio=0.5)
        admin.metrics.scrape_ended(endpoint, 0.004, 50_000)
    dead.scrape_failed("connection refused")
    admin.metrics.scrape_failed(dead, "connect")
    admin.clock.advance(0.2)
    for i in range(100):
        endpoint = (live, other)[i % 2]
        outcome = RequestOutcome(started_at_s=1.0, model="llama", target_model="llama", request_bytes=500)
        admin.metrics.body_read(0.002)
        admin.pool.count_pick(endpoint)
        admin.metrics.picked(0.00003, endpoint.spec.name, endpoint.address, "llama")
        admin.metrics.request_began(outcome)
        if i < 98:
            outcome.status, outcome.ended_at_s, outcome.endpoint = 200, 2.0, endpoint.address
            admin.metrics.request_ended(outcome)
            admin.pool.count_release(endpoint)


async def page(admin: Admin, path: str = "/metrics", **headers: str) -> str:
    async with admin.client.get(path, headers=headers) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_after_traffic_what_the_picker_costs_and_knows_is_present_and_non_trivial() -> None:
    """Field report 85: decision time, body time, scrape errors, age of data, endpoints, in-flight and queue."""
    async with serving() as admin:
        traffic(admin)
        text = await page(admin)

    values: dict[str, list[float]] = {}
    for family in text_format(text):
        for sample in family.samples:
            values.setdefault(sample.name, []).append(sample.value)
    for name in PRESENT_AND_FED:
        assert any(values.get(name, ())), f"{name}: expected a value that is not zero, found {values.get(name)}"
    assert sum(values["inference_objective_request_total"]) == 100
    assert values["epp_pick_duration_seconds_count"] == [100]
    assert values["epp_endpoint_in_flight_requests"] == [1, 1, 0]
    assert values["epp_endpoint_metrics_age_seconds"] == pytest.approx([0.2, 0.2])


async def test_every_family_is_well_formed_in_both_formats() -> None:
    async with serving() as admin:
        admin.metrics.describe_build(Build(version="1", python="3.11", transport="grpcio"))
        admin.metrics.expect_tls_handshakes()
        traffic(admin)
        plain = {family.name: family for family in text_format(await page(admin))}
        accepted = "application/openmetrics-text;version=1.0.0"
        async with admin.client.get("/metrics", headers={"accept": accepted}) as answer:
            assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            strict = {family.name: family for family in open_metrics(await answer.text())}  # type: ignore[no-untyped-call]

    assert plain.keys() == strict.keys()
    for family in plain.values():
        assert family.documentation, family.name
        seen = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(seen) == len(set(seen)), f"{family.name} has a series twice"


async def test_the_page_is_plain_text_for_who_does_not_ask_otherwise() -> None:
    async with serving() as admin, admin.client.get("/metrics") as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_page_is_zipped_for_who_accepts_that() -> None:
    async with serving() as admin:
        traffic(admin)
        async with admin.client.get("/metrics", headers={"accept-encoding": "identity"}) as answer:
            assert "content-encoding" not in answer.headers
            plain = await answer.read()
        async with admin.client.get("/metrics", headers={"accept-encoding": "gzip"}, auto_decompress=False) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            zipped = await answer.read()

    assert len(zipped) < len(plain) / 4
    assert b"epp_pick_duration_seconds_count 100.0" in gzip.decompress(zipped)


async def test_single_names_can_be_asked_for() -> None:
    async with serving() as admin:
        traffic(admin)
        text = await page(admin, "/metrics?name[]=epp_endpoints&name[]=epp_pick_duration_seconds_count")

    samples = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert samples == {"epp_endpoints", "epp_pick_duration_seconds_count"}


@pytest.mark.parametrize("media", ["application/openmetrics-text", "text/plain"])
@pytest.mark.parametrize("version", ["S3", "1.x.y", "2.0.x", "1.0.0.\xff", '"1.0.0"', "1" * 5000, "\u0663.0.0", ""])
async def test_a_version_that_is_none_gets_plain_text(media: str, version: str) -> None:
    async with serving() as admin:
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        accept = f"accept: {media};version={version}\r\n".encode("latin-1" if version.endswith("\xff") else "utf-8")
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + accept + b"\r\n")
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert admin.logged.getvalue() == ""
