"""The GET of a metrics page, against a server that does everything wrong that a server can do."""

import asyncio
import datetime
import gzip
import ipaddress
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

from epp.clock import SystemClock
from epp.config.settings import ScrapeSettings
from epp.errors import ConfigError
from epp.scrape.fetch import KEEP_IDLE_S, HttpFetcher, MetricsPage
from epp.scrape.reasons import Reason, ScrapeError
from tests.fakes.clock import FakeClock
from tests.fakes.metrics_server import Answer, MetricsServer

PATIENT = ScrapeSettings(timeout_s=60.0)
"""On a busy machine even a page of loopback may take longer than the default."""
PAGE = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3.0\n" * 20


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    async with MetricsServer(PAGE) as server:
        yield server


async def fetch(server: MetricsServer, path: str = "/metrics", **settings: object) -> MetricsPage:
    async with HttpFetcher(replace(PATIENT, **settings), SystemClock()) as fetcher:  # type: ignore[arg-type]
        return await fetcher.get(URL(f"http://{server.address}{path}"))


async def failure(server: MetricsServer, path: str = "/metrics", **settings: object) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        await fetch(server, path, **settings)
    return caught.value


async def test_a_page_comes_with_its_type_and_the_time_the_server_took(server: MetricsServer) -> None:
    server.answer = Answer(body=PAGE, delay_s=0.2)

    began_at_s = time.monotonic()
    page = await fetch(server)
    took_s = time.monotonic() - began_at_s

    assert page.body == PAGE
    assert page.content_type == "text/plain; version=0.0.4"
    assert 0.1 < page.server_s < took_s, "what the way takes is not the server's"


async def test_plain_text_without_compression_is_asked_for_and_nothing_of_the_environment_is_used(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    await fetch(server)

    headers = server.requests[0].headers
    assert headers["accept"].startswith("text/plain")
    assert headers["accept-encoding"] == "identity"
    assert headers["host"] == server.address


async def test_port_path_and_headers_can_be_chosen(server: MetricsServer) -> None:
    """Field report 44: metrics may live behind a key, on another port and path."""
    server.answers["/internal/m?model=a"] = Answer(body=b"here 1\n")

    headers = (("Authorization", "Bearer secret"), ("accept", "application/json"))
    page = await fetch(server, "/internal/m?model=a", headers=headers)

    assert page.body == b"here 1\n"
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].headers["accept"] == "application/json"


async def test_the_connection_is_kept_and_no_cookie_is_sent_back(server: MetricsServer) -> None:
    server.answer = Answer(body=PAGE, headers={"set-cookie": "a=b"})

    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        for _ in range(3):
            await fetcher.get(URL(f"http://{server.address}/metrics"))

    assert server.connections == 1
    assert "cookie" not in server.requests[2].headers


async def test_a_server_that_drains_is_left_without_a_connection(server: MetricsServer) -> None:
    """Triton ends only when its last connection has."""
    url = URL(f"http://{server.address}/metrics")
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        await fetcher.get(url)
        for _ in range(2):
            assert (await fetcher.get(url, keep=False)).body == PAGE

    assert server.connections == 2
    assert ["connection" in request.headers for request in server.requests] == [False, True, True]
    assert server.requests[1].headers["connection"] == "close"


async def test_what_is_kept_can_be_dropped(server: MetricsServer) -> None:
    url = URL(f"http://{server.address}/metrics")
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        fetcher.drop(url)
        await fetcher.get(url)
        fetcher.drop(url)
        await fetcher.get(url)

    assert server.connections == 2


async def test_a_kept_connection_that_the_server_closed_is_replaced_at_once(server: MetricsServer) -> None:
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        await fetcher.get(URL(f"http://{server.address}/metrics"))
        server.cut_kept_connections = True
        page = await fetcher.get(URL(f"http://{server.address}/metrics"))

    assert page.body == PAGE
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=PAGE, chunks=7),
        Answer(body=PAGE, until_close=True),
        Answer(raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE)),
        Answer(raw=b"HTTP/1.0 200 OK\r\n\r\n" + PAGE),
        Answer(body=gzip.compress(PAGE, mtime=0), headers={"content-encoding": "gzip"}),
        Answer(body=gzip.compress(PAGE, mtime=0), headers={"content-encoding": "gzip"}, chunks=5),
        Answer(body=zlib.compress(PAGE), headers={"Content-Encoding": "deflate"}),
    ],
    ids=["chunk extensions", "until close", "100 continue", "HTTP 1.0", "gzip", "gzip in chunks", "deflate"],
)
async def test_every_framing_gives_the_same_page(server: MetricsServer, answer: Answer) -> None:
    server.answer = answer

    assert (await fetch(server)).body == PAGE


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(hang=True), Reason.TIMEOUT),
        (Answer(body=PAGE, dribble_s=0.005), Reason.TIMEOUT),
        (Answer(raw=b""), Reason.CONNECT),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-le"), Reason.CONNECT),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\ncut"), Reason.CONNECT),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ncu"), Reason.CONNECT),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\ncut"), Reason.GARBAGE),
        (Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n"), Reason.GARBAGE),
        (Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n"), Reason.GARBAGE),
        (Answer(body=b"<html>", headers={"content-type": "text/html; charset=utf-8"}), Reason.GARBAGE),
        (Answer(body=gzip.compress(PAGE, mtime=0)[:-9], headers={"content-encoding": "gzip"}), Reason.GARBAGE),
        (Answer(body=b"no gzip", headers={"content-encoding": "gzip"}), Reason.GARBAGE),
        (Answer(body=PAGE, headers={"content-encoding": "br"}), Reason.GARBAGE),
        (Answer(body=b"x" * 9000), Reason.TOO_LARGE),
        (Answer(body=b"x" * 9000, chunks=1000), Reason.TOO_LARGE),
        (Answer(body=gzip.compress(b"x" * 10_000_000, mtime=0), headers={"content-encoding": "gzip"}), Reason.TOO_LARGE),
        (Answer(status=404), Reason.NOT_ENABLED),
        (Answer(status=501, body=b'{"error": "not supported"}'), Reason.NOT_ENABLED),
        (Answer(status=401), Reason.NEEDS_KEY),
        (Answer(status=403), Reason.NEEDS_KEY),
        (Answer(status=503), Reason.STATUS),
        (Answer(status=204, headers={}), Reason.STATUS),
        (Answer(status=302, headers={"location": "http://example.com/metrics"}), Reason.STATUS),
        (Answer(status=302, headers={}), Reason.STATUS),
        (Answer(status=302, headers={"location": "http://[bad/"}), Reason.STATUS),
    ],
)
async def test_each_fault_has_a_reason(server: MetricsServer, answer: Answer, reason: Reason) -> None:
    server.answer = answer

    timeout_s = 0.2 if reason is Reason.TIMEOUT else PATIENT.timeout_s
    error = await failure(server, timeout_s=timeout_s, max_page_bytes=8192)

    assert error.reason is reason, error
    assert str(error)


async def test_what_follows_a_too_short_content_length_is_never_taken_for_the_next_page(server: MetricsServer) -> None:
    tail = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"
    server.answer = Answer(body=PAGE + tail, headers={"content-length": str(len(PAGE))})
    got: list[bytes | Reason] = []

    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        for _ in range(4):
            try:
                got.append((await fetcher.get(URL(f"http://{server.address}/metrics"))).body)
            except ScrapeError as error:
                got.append(error.reason)

    assert set(got) <= {PAGE, Reason.GARBAGE}, got
    assert PAGE in got


async def test_a_refused_connection_says_so_without_the_address_of_the_moment(server: MetricsServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server.port = closed.getsockname()[1]
        error = await failure(server)

    assert error.reason is Reason.REFUSED
    assert "refused" in str(error)


async def test_a_way_that_a_slow_network_takes_is_not_counted_as_the_servers_time(server: MetricsServer) -> None:
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        url = URL(f"http://{server.address}/metrics")
        began_at_s = time.monotonic()
        await fetcher.get(url)
        (connection,) = fetcher._kept.values()
        assert 0 < connection.round_trip_s < time.monotonic() - began_at_s, "the system tells it for a loopback connection"

        server.answer = Answer(body=PAGE, delay_s=0.03)
        connection.round_trip_s = 0.02
        began_at_s = time.monotonic()
        page = await fetcher.get(url)
        assert 0.009 < page.server_s <= time.monotonic() - began_at_s - 0.02


async def test_connections_that_nobody_uses_any_more_are_closed() -> None:
    clock = FakeClock()
    async with MetricsServer(PAGE) as one, MetricsServer(PAGE) as two:
        async with HttpFetcher(PATIENT, clock) as fetcher:
            await fetcher.get(URL(f"http://{one.address}/metrics"))
            clock.advance(KEEP_IDLE_S + 1)
            await fetcher.get(URL(f"http://{two.address}/metrics"))

            assert {port for _, _, port in fetcher._kept} == {two.port}
        assert not fetcher._kept


async def test_endpoints_that_share_one_metrics_port_do_not_wait_for_each_other(server: MetricsServer) -> None:
    url = URL(f"http://{server.address}/metrics")
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        pages = await asyncio.gather(*(fetcher.get(url) for _ in range(5)))

        assert [page.body for page in pages] == [PAGE] * 5
        assert len(fetcher._kept) == 1


@pytest.mark.parametrize("header", [("X-Key", "a\r\nHost: b"), ("X Key", "a"), ("", "a"), ("X-Key:", "a")])
def test_a_header_that_cannot_be_sent_is_a_configuration_error_without_its_value(header: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"scrape\.headers: expected") as caught:
        HttpFetcher(ScrapeSettings(headers=(header,)), SystemClock())

    assert "Host" not in str(caught.value)


async def test_one_redirect_on_the_same_host_is_followed_with_our_scheme(server: MetricsServer) -> None:
    server.answer = Answer(status=307, headers={"location": f"https://{server.address}/metrics/"})
    server.answers["/metrics/"] = Answer(body=PAGE)

    assert (await fetch(server)).body == PAGE
    assert server.paths == ["/metrics", "/metrics/"]
    assert server.connections == 1


async def test_a_redirect_that_leads_to_another_one_is_given_up(server: MetricsServer) -> None:
    server.answer = Answer(status=307, headers={"location": "/metrics"})

    assert (await failure(server)).reason is Reason.STATUS
    assert len(server.requests) == 2


async def test_llama_cpp_names_the_start_of_its_process_in_a_header(server: MetricsServer) -> None:
    server.answer = Answer(body=PAGE, headers={"Process-Start-Time-Unix": "1700000000"})

    assert (await fetch(server)).process_start == "1700000000"


async def test_an_ipv6_endpoint_is_read_with_brackets() -> None:
    try:
        async with MetricsServer(PAGE, host="::1") as server:
            page = await fetch(server)
    except OSError:
        pytest.skip("no IPv6 loopback")

    assert page.body == PAGE
    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


async def test_a_self_signed_certificate_is_taken_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    async with MetricsServer(PAGE, tls=_self_signed(tmp_path)) as server:
        async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
            page = await fetcher.get(URL(f"https://{server.address}/metrics"))
        async with HttpFetcher(replace(PATIENT, insecure_skip_verify=False), SystemClock()) as fetcher:
            with pytest.raises(ScrapeError) as caught:
                await fetcher.get(URL(f"https://{server.address}/metrics"))

    assert page.body == PAGE
    assert caught.value.reason is Reason.TLS


async def test_tls_towards_a_plain_server_is_a_tls_fault() -> None:
    async def answer_in_plain_text(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_in_plain_text, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
            with pytest.raises(ScrapeError) as caught:
                await fetcher.get(URL(f"https://127.0.0.1:{port}/metrics"))

    assert caught.value.reason is Reason.TLS


async def test_a_cancelled_read_leaves_no_connection_behind(server: MetricsServer) -> None:
    server.answer = Answer(hang=True)
    async with HttpFetcher(PATIENT, SystemClock()) as fetcher:
        read = asyncio.create_task(fetcher.get(URL(f"http://{server.address}/metrics")))
        while not server.requests:
            await asyncio.sleep(0.001)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        server.answer = Answer(body=PAGE)
        assert (await fetcher.get(URL(f"http://{server.address}/metrics"))).body == PAGE

    assert server.connections == 2


def _self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sim")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "both.pem"
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
