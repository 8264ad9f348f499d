"""The calls to one endpoint picker's admin port about one endpoint.

Nothing that comes back is trusted: answers are cut at `MOST_ANSWER_BYTES`, every call is limited in total, redirects are not
followed.
"""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from yarl import URL

from epp.drain.idle_watch import NoAnswer, PickerAnswer, Silent, Told, Unknown

MOST_ANSWER_BYTES = 64 << 10
_REFUSALS: Mapping[int, str] = {
    HTTPStatus.FORBIDDEN: "it does not allow it (403): the token is missing or wrong, or it is not this pod's address",
    HTTPStatus.UNAUTHORIZED: "it does not allow it (401): the token is missing or wrong",
    HTTPStatus.BAD_REQUEST: "it does not understand the call (400)",
}


class PickerCalls:
    """Tells an endpoint picker that an endpoint drains, and asks how many requests it counts there."""

    def __init__(self, client: aiohttp.ClientSession, url: str, endpoint: str, *, keep_s: float, token: str | None) -> None:
        """Args:
            url: The admin port, such as `http://my-pool-epp:9090`.
            endpoint: `ip:port`.
            keep_s: How long the mark holds after this call.

        Raises:
            ValueError: `url` is none.
        """
        self.name = f"{url} about {endpoint}"
        self._client = client
        self._base = URL(url.rstrip("/"))
        self._endpoint = endpoint
        self._keep = f"{keep_s:g}s"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def sample(self, timeout_s: float) -> PickerAnswer:
        """Say that the endpoint drains (again: it may have forgotten), and ask for the count.

        Args:
            timeout_s: For both calls together.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._sample()
        except TimeoutError:
            return NoAnswer("it does not answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Silent(f"it cannot be reached ({_short(error)})")

    async def _sample(self) -> PickerAnswer:
        status, _ = await self._call("POST", "drain", {"keep": self._keep})
        if status == HTTPStatus.NOT_FOUND:
            return await self._unknown()
        if status != HTTPStatus.OK:
            return Silent(_REFUSALS.get(status, f"it answers {status}"))
        status, body = await self._call("GET", "drained", {"timeout": "0s"})
        if status == HTTPStatus.OK:
            return Told(0.0)
        if status == HTTPStatus.ACCEPTED:
            return Told(max(1.0, _count(body)))
        return Silent(f"it answers {status} to how many requests it counts")

    async def _unknown(self) -> PickerAnswer:
        async with self._client.get(self._base / "readyz", allow_redirects=False) as response:
            ready = response.status == HTTPStatus.OK
        return (
            Unknown("it does not know this endpoint")
            if ready
            else Silent("it is not ready and does not know this endpoint yet")
        )

    async def _call(self, method: str, call: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        url = (self._base / "api" / "v1" / "endpoints" / self._endpoint / call).with_query(query)
        async with self._client.request(method, url, headers=self._headers, allow_redirects=False) as response:
            body = bytearray()
            async for piece in response.content.iter_chunked(MOST_ANSWER_BYTES):
                body += piece
                if len(body) > MOST_ANSWER_BYTES:
                    response.close()
                    break
            return response.status, bytes(body)


def _count(body: bytes) -> float:
    """The count in an answer; 0 when there is none."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return 0.0
    count = answer.get("in_flight_requests") if isinstance(answer, dict) else None
    return float(count) if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 10**9 else 0.0


def _short(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())[:120]
