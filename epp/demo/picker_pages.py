"""What the picker's admin port says."""

from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from epp.errors import EppError

PICK_DURATION = "epp_pick_duration_seconds"


class PagesError(EppError):
    """The admin port does not answer as it should."""


class PoolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of `GET /api/v1/pool`."""

    name: str
    engine: str | None
    state: str
    in_flight_requests: int
    leaving: bool = False
    demoted_because: str | None = None


class _Pool(msgspec.Struct):
    endpoints: list[PoolEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class PickTimes:
    """How long decisions took.

    Attributes:
        p50_at_most_s, p99_at_most_s: Upper bounds of the histogram's buckets that hold these quantiles.
    """

    picks: int
    mean_s: float
    p50_at_most_s: float
    p99_at_most_s: float


class PickerPages:
    """Reads the pages; a PagesError when that fails."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def is_ready(self) -> bool:
        """Whether /readyz says so."""
        status, _ = await self._get("/readyz")
        return status == 200

    async def pool(self) -> dict[str, PoolEntry]:
        """The endpoints by name; one that left the file and still holds requests is among them."""
        return read_pool(await self._page("/api/v1/pool"))

    async def pick_times(self) -> PickTimes | None:
        """Durations of all decisions so far; None when there was none."""
        return read_pick_times((await self._page("/metrics")).decode())

    async def _page(self, path: str) -> bytes:
        status, page = await self._get(path)
        if status != 200:
            raise PagesError(f"{self.url}{path}: expected status 200, found {status}")
        return page

    async def _get(self, path: str) -> tuple[int, bytes]:
        assert self._session is not None, "expected to be inside `async with`"
        try:
            async with self._session.get(f"{self.url}{path}") as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PagesError(f"{self.url}{path}: expected an answer, found {str(error) or type(error).__name__}") from error


def read_pool(page: bytes) -> dict[str, PoolEntry]:
    """The endpoints of a pool page by name; of two with one name the one that is not leaving."""
    endpoints = msgspec.json.decode(page, type=_Pool).endpoints
    return {entry.name: entry for entry in sorted(endpoints, key=lambda entry: not entry.leaving)}


def read_pick_times(page: str) -> PickTimes | None:
    """The histogram of decisions on a metrics page, all its series together."""
    buckets: defaultdict[float, float] = defaultdict(float)
    total_s = 0.0
    for family in text_string_to_metric_families(page):
        if family.name != PICK_DURATION:
            continue
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                buckets[float(sample.labels["le"])] += sample.value
            elif sample.name.endswith("_sum"):
                total_s += sample.value
    bounds = sorted(buckets)
    picks = int(buckets[bounds[-1]]) if bounds else 0
    if picks == 0:
        return None

    def at_most_s(ratio: float) -> float:
        return next(bound for bound in bounds if buckets[bound] >= ratio * picks)

    return PickTimes(picks=picks, mean_s=total_s / picks, p50_at_most_s=at_most_s(0.5), p99_at_most_s=at_most_s(0.99))
