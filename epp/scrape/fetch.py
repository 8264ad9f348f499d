"""One GET of a metrics page, with every way it can go wrong turned into a `ScrapeError`."""

import asyncio
import os
import ssl
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from yarl import URL

from epp.clock import Clock
from epp.config.settings import ScrapeSettings
from epp.errors import ConfigError
from epp.scrape.connection import Connection, connect
from epp.scrape.reasons import Reason, ScrapeError
from epp.scrape.response import Response

REQUEST_HEADERS = {
    # A server that could answer in OpenMetrics or compressed does neither (prometheus_client looks at both headers).
    "Accept": "text/plain, */*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": "inference-epp",
}
PROCESS_START_HEADER = "process-start-time-unix"
"""llama.cpp names the start of its process in the headers of its page."""
KEEP_IDLE_S = 60.0
"""A connection that was not used for so long is closed: its endpoint has left."""

_NOT_ENABLED = frozenset({404, 405, 501})
_NEEDS_KEY = frozenset({401, 403})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_Origin = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """A metrics page as the server sent it.

    Attributes:
        body: Decompressed, at most `scrape.maxPageBytes` long.
        content_type: As sent; None when it is missing.
        server_s: What the server took until the first byte, without the way there and back, ≥ 0.
        process_start: What the server says of the start of its process in `PROCESS_START_HEADER`; None if nothing.
    """

    body: bytes
    content_type: str | None
    server_s: float
    process_start: str | None = None


class HttpFetcher:
    """Reads metrics pages over connections that are kept; an async context manager that closes them."""

    def __init__(self, settings: ScrapeSettings, clock: Clock) -> None:
        """Raises ConfigError when a header of the settings cannot be sent."""
        self._settings = settings
        self._clock = clock
        self._headers = _header_lines(settings.headers)
        self._kept: dict[_Origin, Connection] = {}
        self._swept_at_s = clock.monotonic_s()
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

    async def get(self, url: URL, *, keep: bool = True) -> MetricsPage:
        """Read the page at `url`, within `scrape.timeout` from now; without `keep` over a connection that is closed then.

        Raises:
            ScrapeError: There is no page.
        """
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._get(url, keep, may_redirect=True)
        except TimeoutError:
            raise ScrapeError(
                Reason.TIMEOUT, f"no complete page within {self._settings.timeout_s:g} s, the server is probably busy"
            ) from None
        except ssl.SSLError as error:
            detail = getattr(error, "verify_message", "") or error.reason or "handshake failed"
            raise ScrapeError(Reason.TLS, f"no TLS connection to {url.host}:{url.port}: {detail}") from None
        except OSError as error:
            detail = os.strerror(error.errno) if error.errno else type(error).__name__
            reason = Reason.REFUSED if isinstance(error, ConnectionRefusedError) else Reason.CONNECT
            raise ScrapeError(reason, f"no connection to {url.host}:{url.port}: {detail}") from None

    def drop(self, url: URL) -> None:
        """Close the connection that is kept for the page at `url`, if there is one."""
        connection = self._kept.pop(_origin(url), None)
        if connection is not None:
            connection.close()

    async def _get(self, url: URL, keep: bool, *, may_redirect: bool) -> MetricsPage:
        response, server_s = await self._exchange(url, keep)
        if response.status in _REDIRECTS and may_redirect:
            page = await self._get(_same_host_redirect(url, response.headers.get("location")), keep, may_redirect=False)
            return replace(page, server_s=page.server_s + server_s)
        _judge_status(url, response)
        return MetricsPage(
            body=response.body(),
            content_type=response.headers.get("content-type"),
            server_s=server_s,
            process_start=response.headers.get(PROCESS_START_HEADER),
        )

    async def _exchange(self, url: URL, keep: bool) -> tuple[Response, float]:
        """One request and its answer; tried again at once when the server had meanwhile closed the kept connection."""
        origin = _origin(url)
        request = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (
            url.raw_path_qs.encode("ascii"),
            url.raw_authority.encode("ascii"),
            b"" if keep else b"Connection: close\r\n",
            self._headers,
        )
        connection = self._kept.pop(origin, None)
        while True:
            kept = connection is not None and connection.open
            if connection is None or not kept:
                connection = await connect(origin[1], origin[2], self._tls_of(url), self._clock)
            response = Response(self._settings.max_page_bytes)
            try:
                first_byte_s = await connection.exchange(request, response)
            except ScrapeError as error:
                if kept and error.reason is Reason.CONNECT and not response.started:
                    continue
                raise
            if keep:
                self._keep(origin, connection)
            else:
                connection.close()
            return response, max(0.0, first_byte_s - connection.round_trip_s)

    def _keep(self, origin: _Origin, connection: Connection) -> None:
        """Keep a connection for the next scrape; endpoints that share a metrics port each bring their own, one is enough."""
        if not connection.open:
            return
        other = self._kept.pop(origin, None)
        if other is not None:
            other.close()
        self._kept[origin] = connection
        now_s = self._clock.monotonic_s()
        if now_s - self._swept_at_s >= KEEP_IDLE_S:
            self._swept_at_s = now_s
            for idle in [o for o, c in self._kept.items() if not c.open or now_s - c.used_at_s >= KEEP_IDLE_S]:
                self._kept.pop(idle).close()

    def _tls_of(self, url: URL) -> ssl.SSLContext | None:
        if url.scheme != "https":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self._settings.insecure_skip_verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        return self._tls


def _origin(url: URL) -> _Origin:
    return url.scheme, url.host or "", url.port or 0


def _header_lines(own: tuple[tuple[str, str], ...]) -> bytes:
    """The headers of every request; those of the settings win, in whatever case they are written."""
    merged = {name.lower(): (name, value) for name, value in (*REQUEST_HEADERS.items(), *own)}
    lines = [f"{name}: {value}" for name, value in merged.values()]
    for (name, _), line in zip(merged.values(), lines, strict=True):
        if not name or set(line) & set("\r\n\0") or set(name) & set(" :"):
            raise ConfigError(f"scrape.headers: expected names and values without line breaks, found the name {name!r}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _judge_status(url: URL, response: Response) -> None:
    status = response.status
    if status in _NOT_ENABLED:
        raise ScrapeError(Reason.NOT_ENABLED, f"metrics are not enabled: {url.path} answered {status}")
    if status in _NEEDS_KEY:
        raise ScrapeError(Reason.NEEDS_KEY, f"{url.path} answered {status}: expected a key in scrape.headers")
    if status != 200:
        raise ScrapeError(Reason.STATUS, f"{url.path} answered {status}")
    if response.headers.get("content-type", "").startswith("text/html"):
        raise ScrapeError(Reason.GARBAGE, f"{url.path}: expected a metrics page, found an HTML page")


def _same_host_redirect(url: URL, location: str | None) -> URL:
    """Where a redirect leads, with our scheme: behind a TLS proxy, servers name their own."""
    try:
        target = url.join(URL(location)) if location else None
    except ValueError:
        target = None
    if target is None or target.host != url.host or target.explicit_port not in {url.explicit_port, None}:
        raise ScrapeError(Reason.STATUS, f"{url.path} redirects to another host, which is not followed")
    return url.join(target.relative())
