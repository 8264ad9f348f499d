"""Bodies that are no tidy JSON: they pass byte for byte, are routed by load, and harm nobody else."""

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from epp.envoy.options import BodyMode
from tests.flows.harness import (
    PATIENCE_S,
    Setting,
    endpoint_arguments,
    start_all,
    start_envoy,
    start_pair,
    start_upstreams,
    wait_until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.both_transports]

SLOW_CLIENTS = 40
MODES = [BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED]
SECRET = "correct-horse-battery-staple"


@dataclass(frozen=True, slots=True)
class Odd:
    """A body and its headers."""

    body: bytes
    content_type: str = "application/json"
    encoding: str | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [("content-type", self.content_type), *([("content-encoding", self.encoding)] if self.encoding else [])]


def multipart(size: int) -> bytes:
    """An upload whose model field comes after the file."""
    return (
        b'--frontier\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n'
        + bytes(range(256)) * (size // 256)
        + b'\r\n--frontier\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--frontier--\r\n'
    )


BODIES = {
    "an upload of 2 MB": Odd(multipart(2_000_000), "multipart/form-data; boundary=frontier"),  # Field report 22
    "gzip": Odd(gzip.compress(b'{"model": "m", "prompt": "x"}'), encoding="gzip"),  # Field report 23
    "gzip that unpacks to 200 MB": Odd(gzip.compress(b'{"a": "' + b"0" * 200_000_000 + b'"}', 1), encoding="gzip"),
    "an encoding nobody knows": Odd(b"\x28\xb5\x2f\xfd" + bytes(1000), encoding="zstd"),
    "numbers, keys and spaces as no parser would write them": Odd(  # Field report 24
        b'{ "id":12345678901234567890,"model":"a","model" : "b",\r\n"x":1.10, "t":"\\u00e9\\/" }'
    ),
    "token ids": Odd(b'{"model": "m", "prompt": [1, 2, 3, 4]}'),  # Field report 21
    "nested token ids": Odd(b'{"model": "m", "prompt": [[1, 2], [3, 4]]}'),
    "content parts": Odd(b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'),
    "array input": Odd(b'{"model": "m", "input": [{"role": "user", "content": "x"}]}'),
    "null": Odd(b"null"),
    "an array": Odd(b"[]"),
    "broken JSON": Odd(b'{"model": "m", "prompt": "x'),
    "10,000 brackets": Odd(b"[" * 10_000 + b"]" * 10_000),
    "lone surrogates": Odd(b'{"model": "\\ud800", "prompt": "\\udfff"}'),
    "a model name of 1 MB": Odd(b'{"model": "' + b"m" * 1_000_000 + b'", "prompt": "x"}'),
    "a model that is no text": Odd(b'{"model": {"name": 5}, "prompt": true}'),
    "bytes": Odd(bytes(range(256)) * 40, "application/octet-stream"),
    "no UTF-8": Odd(b'{"model": "\xff\xfe", "prompt": "\xc3\x28"}'),
    "a byte order mark": Odd(b'\xef\xbb\xbf{"model": "m"}'),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Setting]:
    """A picker and two model servers; the Envoy is the default one."""
    async with start_all(2) as scene:
        yield scene
        await scene.epp.wait_idle()
        assert scene.epp.log_records("error") == []


@pytest.mark.parametrize("mode", MODES)
async def test_odd_bodies_pass_untouched(pool: Setting, mode: BodyMode) -> None:
    """Field reports 21, 22, 23 and 24: never a 400, never another byte."""
    async with start_envoy(pool.epp.grpc.port, request_body_mode=mode) as envoy:
        scene = Setting(envoy, pool.epp, pool.upstreams)
        answers = [await scene.fetch(headers=odd.headers, body=odd.body) for odd in BODIES.values()]

    for (name, odd), answer in zip(BODIES.items(), answers, strict=True):
        assert answer.status == 200, name
        assert answer.json()["body_sha256"] == hashlib.sha256(odd.body).hexdigest(), name


async def test_odd_bodies_harm_no_other_request(pool: Setting) -> None:
    """They are in flight together with ordinary ones."""
    rss_before = pool.epp.rss_bytes()
    odd = [asyncio.create_task(pool.fetch(headers=odd.headers, body=odd.body)) for odd in BODIES.values() for _ in range(3)]
    ordinary = [asyncio.create_task(pool.fetch(body=b'{"model": "m", "prompt": "x"}')) for _ in range(30)]
    answers = await asyncio.gather(*odd, *ordinary)

    assert {answer.status for answer in answers} == {200}
    assert pool.epp.rss_bytes() - rss_before < 100 << 20, "what is packed is not unpacked without a limit"


async def test_names_of_models_do_not_fill_the_metrics_page(pool: Setting) -> None:
    """A name of a megabyte is no label."""
    await pool.fetch(body=BODIES["a model name of 1 MB"].body)
    await pool.epp.wait_idle()
    _, page = await pool.epp.get("/metrics")

    assert max(len(line) for line in page.splitlines()) < 2_000


async def test_neither_prompts_nor_credentials_are_told_anywhere() -> None:
    """Also at the debug level, and also when the body is broken or refused."""
    strict = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, requests: {strict: true, models: [m]}}"
    headers = [("authorization", f"Bearer {SECRET}"), ("content-type", "application/json")]
    async with (
        start_upstreams(1) as upstreams,
        start_pair(upstreams, *endpoint_arguments(upstreams), "--log-level", "debug", "--config-text", strict) as scene,
    ):
        good = await scene.fetch(headers=headers, body=f'{{"model": "m", "prompt": "{SECRET}"}}'.encode())
        unknown = await scene.fetch(headers=headers, body=f'{{"model": "x", "prompt": "{SECRET}"}}'.encode())
        broken = await scene.fetch(headers=headers, body=f'{{"model": "m", "prompt": "{SECRET}'.encode())
        await scene.epp.wait_idle()
        pages = [
            (await scene.epp.get(path))[1] for path in ("/metrics", "/api/v1/pool", "/api/v1/picks", "/api/v1/config", "/")
        ]
        log = scene.epp.log_text()

    assert (good.status, unknown.status, broken.status) == (200, 404, 400)
    assert (unknown.head.get("x-epp-reason"), broken.head.get("x-epp-reason")) == ("model_not_found", "bad_request")
    for text in (log, *pages, unknown.body.decode(), broken.body.decode()):
        assert SECRET not in text


async def test_an_ipv6_endpoint_is_scraped_and_reached() -> None:
    """Field report 11: in brackets on the wire."""
    async with start_upstreams(1, host="::1") as upstreams:
        upstreams[0].running_requests = 2
        async with start_pair(upstreams, *endpoint_arguments(upstreams)) as scene:
            answer = await scene.fetch(body=b"{}")
            endpoints = await scene.epp.pool()

    assert answer.status == 200
    assert dict(answer.json()["headers"])["x-gateway-destination-endpoint"] == f"[::1]:{upstreams[0].port}"
    assert endpoints[f"[::1]:{upstreams[0].port}"]["running_requests"] == 2


@pytest.mark.parametrize("transport", ["socket", "grpcio"])
async def test_answers_that_nobody_reads_do_not_fill_the_memory(transport: str) -> None:
    """Back-pressure goes through: what slow clients do not read stays at the model server."""
    async with start_all(2, epp_arguments=("--transport", transport)) as scene:
        assert (await scene.fetch("/bytes?n=5000000", body=b"{}")).status == 200
        before = scene.epp.rss_bytes()
        slow = [await _ask_and_do_not_read(scene) for _ in range(SLOW_CLIENTS)]
        growth = 0
        for _ in range(60):
            assert (await scene.fetch(body=b"{}")).status == 200
            growth = max(growth, scene.epp.rss_bytes() - before)

        async def counts_the_slow_ones() -> bool:
            return await scene.epp.in_flight() == SLOW_CLIENTS

        await wait_until(counts_the_slow_ones, f"{SLOW_CLIENTS} requests in flight")
        for writer in slow:
            writer.transport.abort()
        await scene.epp.wait_idle()

    assert growth < SLOW_CLIENTS * (6 << 20), f"grew by {growth >> 20} MiB for {SLOW_CLIENTS * 20} MB that nobody reads"


async def _ask_and_do_not_read(scene: Setting) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(scene.listen.host, scene.listen.port, limit=1024)
    writer.write(b"POST /bytes?n=20000000&chunked=1 HTTP/1.1\r\nhost: pool.test\r\ncontent-length: 2\r\n\r\n{}")
    async with asyncio.timeout(4 * PATIENCE_S):  # beside others that send 20 MB each
        await reader.readuntil(b"\r\n\r\n")
    return writer
