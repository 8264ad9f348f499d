"""Requests to the API server."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import msgspec

from epp.config.wording import shorten
from epp.discovery.kubernetes.access import CONNECT_MAX_S, Access, FileStamp
from epp.discovery.kubernetes.api_errors import (
    ApiError,
    BusyError,
    ConflictError,
    CredentialsError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    UnauthorizedError,
    UnexpectedAnswerError,
    UnreachableError,
    error_of,
    unreachable,
)

__all__ = [
    "ApiError",
    "ApiServer",
    "BusyError",
    "ConflictError",
    "CredentialsError",
    "ForbiddenError",
    "GoneError",
    "NotFoundError",
    "Params",
    "UnauthorizedError",
    "UnexpectedAnswerError",
    "UnreachableError",
]

REQUEST_MAX_S = 30.0
"""A plain request takes no longer, answer included."""
ANSWER_MAX_BYTES = 64 << 20
"""A page of a list has some hundred objects, of 1.5 MiB each at most and of some KB in fact."""
ERROR_MAX_BYTES = 64 << 10
"""More of an error is not read."""
MERGE_PATCH = "application/merge-patch+json"

Params = Mapping[str, str | int]

_JSON = "application/json"
_WATCH_TIMEOUT = httpx2.Timeout(connect=CONNECT_MAX_S, read=None, write=REQUEST_MAX_S, pool=CONNECT_MAX_S)


class _Client:
    """A client, and how many requests still need it."""

    def __init__(self, http: httpx2.AsyncClient, stamps: tuple[FileStamp, ...]) -> None:
        self.http = http
        self.stamps = stamps
        self.requests = 0


class ApiServer:
    """The one API server that `access` leads to.

    A client (its connections, its certificates, its token) is used until a file that it was made from changes, or it cannot
    reach the server; then the next request makes a new one. What runs on the old one goes on.
    Every request raises `ApiError` when it does not get what it asked for, and takes `REQUEST_MAX_S` at most; only a watch
    goes on until its end, or until the caller leaves it.
    """

    def __init__(self, access: Access, *, answer_max_bytes: int = ANSWER_MAX_BYTES) -> None:
        """Args:
        answer_max_bytes: A longer answer, other than to a watch, is an `UnexpectedAnswerError`.
        """
        self._access = access
        self._answer_max_bytes = answer_max_bytes
        self._client: _Client | None = None

    @property
    def server(self) -> str:
        """The URL, for people: without credentials."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The namespace that the credentials are meant for."""
        return self._access.namespace

    async def get(self, path: str, params: Params | None = None) -> bytes:
        """Read an object, or a page of a list."""
        return await self._request("GET", path, params=params)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Create an object in the collection `path`; `ConflictError` when it is there already."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Replace an object; `ConflictError` when its `resourceVersion` is not the last one."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Change some fields of an object (JSON merge patch, RFC 7396)."""
        return await self._request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def watch(self, path: str, params: Params) -> AsyncGenerator[bytes, None]:
        """The body of a watch as it comes, piece by piece; whoever leaves early must close the iterator.

        Raises:
            ApiError: The watch did not begin, or broke off. A proper end is the end of the iterator.
        """
        async with self._borrowed() as client:
            with _told_as_api_errors():
                request = self._build(client, "GET", path, {**params, "watch": 1}, timeout=_WATCH_TIMEOUT)
                response = await client.http.send(request, stream=True)
            try:
                with _told_as_api_errors():
                    async with asyncio.timeout(REQUEST_MAX_S):
                        await _check(response)
                    async for chunk in response.aiter_raw():
                        yield chunk
            finally:
                await response.aclose()

    async def aclose(self) -> None:
        """Close all connections; watches must have ended."""
        client, self._client = self._client, None
        if client is not None:
            await client.http.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> bytes:
        async with self._borrowed() as client:
            with _told_as_api_errors():
                async with asyncio.timeout(REQUEST_MAX_S):
                    request = self._build(client, method, path, params or {}, body=body, content_type=content_type)
                    response = await client.http.send(request, stream=True)
                    try:
                        await _check(response)
                        return await _body(response, self._answer_max_bytes)
                    finally:
                        await response.aclose()

    def _build(
        self,
        client: _Client,
        method: str,
        path: str,
        params: Params,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        timeout: httpx2.Timeout | None = None,
    ) -> httpx2.Request:
        return client.http.build_request(
            method,
            path,
            params=dict(params),
            content=None if body is None else msgspec.json.encode(body),
            headers=None if body is None else {"content-type": content_type},
            timeout=httpx2.USE_CLIENT_DEFAULT if timeout is None else timeout,
            extensions=dict(self._access.extensions),
        )

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[_Client]:
        before = self._client
        client = self._current()
        client.requests += 1
        try:
            if before is not None:
                await self._close_unused(before)
            yield client
        except (UnreachableError, asyncio.CancelledError):
            # Also when the caller would not wait any longer: other connections may be as silent as this one.
            if self._client is client:
                self._client = None
            raise
        finally:
            client.requests -= 1
            await self._close_unused(client)

    def _current(self) -> _Client:
        stamps = self._access.stamps()
        if self._client is None or self._client.stamps != stamps:
            with _told_as_api_errors():
                http = self._access.client()
                http.event_hooks = {"response": [_bound]}
                self._client = _Client(http, stamps)
        return self._client

    async def _close_unused(self, client: _Client) -> None:
        if client is not self._client and client.requests == 0:
            await client.http.aclose()


class _Cut(httpx2.AsyncByteStream):
    """The begin of a body."""

    def __init__(self, whole: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._whole = whole
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        if left <= 0:
            return
        async for piece in self._whole:
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._whole.aclose()


async def _bound(response: httpx2.Response) -> None:
    """See to it that nobody reads more of an error than its begin, nor what is bigger than it looks (no compression was asked
    for); also where httpx2 itself reads it, between two tries with other credentials.
    """
    compressed = response.headers.get("content-encoding", "identity") != "identity"
    if response.status_code >= 300:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Cut(response.stream, 0 if compressed else ERROR_MAX_BYTES)
    elif compressed:
        raise UnexpectedAnswerError(response.status_code, "", "a compressed answer, which was not asked for")


async def _check(response: httpx2.Response) -> None:
    if response.status_code >= 300:
        body = b"".join([piece async for piece in response.aiter_raw()])
        raise error_of(response.status_code, body, retry_after=response.headers.get("retry-after"))


async def _body(response: httpx2.Response, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > max_bytes:
            raise UnexpectedAnswerError(response.status_code, "", f"an answer longer than {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


@contextmanager
def _told_as_api_errors() -> Iterator[None]:
    """What the libraries below raise, classed by what to do."""
    try:
        yield
    except TimeoutError:
        raise UnreachableError(None, "", f"no answer within {REQUEST_MAX_S:g} s") from None
    except httpx2.DecodingError as error:
        raise UnexpectedAnswerError(None, "", shorten(str(error))) from None
    except httpx2.LocalProtocolError:  # its text shows the header
        raise CredentialsError(None, "", "credentials that cannot stand in a header") from None
    except (httpx2.TransportError, httpx2.TooManyRedirects) as error:
        raise unreachable(error) from None
    except httpx2.InvalidURL as error:
        raise ApiError(None, "", f"a request that cannot be sent: {shorten(str(error))}") from None
    except ssl.SSLError as error:  # while it is read; one of the handshake comes as a TransportError
        raise unreachable(error) from None
    except (OSError, ValueError) as error:
        what = f"{error.strerror or error} ({error.filename})" if isinstance(error, OSError) and error.filename else str(error)
        raise CredentialsError(None, "", shorten(what)) from None
