"""Requests to the API server."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError as LightkubeConfigError

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

    def __init__(self, access: Access) -> None:
        self._access = access
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
            request = self._build(client, "GET", path, {**params, "watch": 1}, timeout=_WATCH_TIMEOUT)
            with _told_as_api_errors():
                response = await client.http.send(request, stream=True)
            try:
                with _told_as_api_errors():
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
                    response = await client.http.send(request)
                    await _check(response)
                    return response.content

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
                self._client = _Client(self._access.client(), stamps)
        return self._client

    async def _close_unused(self, client: _Client) -> None:
        if client is not self._client and client.requests == 0:
            await client.http.aclose()


async def _check(response: httpx2.Response) -> None:
    if response.status_code >= 300:
        body = await response.aread()
        raise error_of(response.status_code, body, retry_after=response.headers.get("retry-after"))


@contextmanager
def _told_as_api_errors() -> Iterator[None]:
    """What the libraries below raise, classed by what to do."""
    try:
        yield
    except TimeoutError:
        raise UnreachableError(None, "", f"no answer within {REQUEST_MAX_S:g} s") from None
    except httpx2.DecodingError as error:
        raise UnexpectedAnswerError(None, "", shorten(str(error))) from None
    except (httpx2.TransportError, httpx2.TooManyRedirects) as error:
        raise unreachable(error) from None
    except LightkubeConfigError as error:
        raise CredentialsError(None, "", shorten(str(error))) from None
    except (KeyError, TypeError) as error:  # what lightkube raises over the answer of a plugin
        raise CredentialsError(None, "", f"the credential plugin gave no token ({error})") from None
    except (OSError, ValueError) as error:
        what = f"{error.strerror or error} ({error.filename})" if isinstance(error, OSError) and error.filename else str(error)
        raise CredentialsError(None, "", shorten(what)) from None
