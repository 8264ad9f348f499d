"""Reading a whole list, page by page."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from epp.discovery.discovery import Sleep
from epp.discovery.kubernetes.api_errors import GoneError, UnexpectedAnswerError
from epp.discovery.kubernetes.watch_stream import meta_of

PAGE_OBJECTS = 100
"""Of 8 KB each, a page is read and decoded in steps of 3 to 5 ms, the longest for which the event loop is held."""
PAGES_MAX = 5_000
"""Half a million objects; Kubernetes is made for 150,000 pods in a cluster."""
STALE_PAGES_MAX = 3
"""A list in which so many pages in a row repeat what was there does not get on. Empty pages may be: the objects of one may
all have been filtered out (Kubernetes API concepts, "Retrieving large results sets in chunks").
"""


class ObjectMeta(Protocol):
    """What is read here of the metadata of an object."""

    @property
    def uid(self) -> str: ...

    @property
    def name(self) -> str: ...


class KubeObject(Protocol):
    """An object as it was decoded."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)


def key_of(metadata: ObjectMeta) -> str:
    """What makes an object the same one: its uid; where something that is no API server gives none, its name."""
    return metadata.uid or metadata.name


class ListApi(Protocol):
    """The request that is made."""

    async def get(self, path: str, params: dict[str, str | int]) -> bytes: ...


class ListMeta(msgspec.Struct, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class _Page(msgspec.Struct, Generic[T]):
    metadata: ListMeta
    items: list[T] | None = None


class _RawPage(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


_RAW_PAGE = msgspec.json.Decoder(_RawPage)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A whole list.

    Attributes:
        objects: By `key_of`.
        unreadable: The keys of objects that are there and cannot be decoded.
        version: What a watch goes on from.
    """

    objects: dict[str, T]
    unreadable: frozenset[str]
    version: str


class Lister(Generic[T]):
    """Reads the list of one resource."""

    def __init__(
        self,
        api: ListApi,
        path: str,
        selectors: dict[str, str | int],
        kind: type[T],
        *,
        on_unreadable: Callable[[str, str, str], None],
        sleep: Sleep = asyncio.sleep,
        page_objects: int = PAGE_OBJECTS,
    ) -> None:
        """Args:
        on_unreadable: Gets key, name and fault of an object that cannot be decoded.
        sleep: Lets others run between two pages.
        """
        self._api = api
        self._path = path
        self._params = {**selectors, "limit": page_objects}
        self._decoder: msgspec.json.Decoder[_Page[T]] = msgspec.json.Decoder(_Page[kind])  # type: ignore[valid-type]
        self._object_decoder = msgspec.json.Decoder(kind)
        self._on_unreadable = on_unreadable
        self._sleep = sleep

    async def read(self) -> Listed[T]:
        """The whole list as it is now: no resource version is asked for, so the API server's store itself answers.

        Raises:
            ApiError: As `ApiServer.get`; a list that became too old while it was read is begun again once.
        """
        try:
            return await self._read()
        except GoneError:
            return await self._read()

    async def _read(self) -> Listed[T]:
        objects: dict[str, T] = {}
        unreadable: set[str] = set()
        params = self._params
        progress = _Progress()
        while True:
            page = self._take(await self._api.get(self._path, params), objects, unreadable)
            if not page.metadata.continue_:
                return Listed(objects, frozenset(unreadable), page.metadata.resource_version)
            progress.check(page, len(objects) + len(unreadable))
            params = {**self._params, "continue": page.metadata.continue_}
            await self._sleep(0)

    def _take(self, body: bytes, objects: dict[str, T], unreadable: set[str]) -> "_Page[T] | _RawPage":
        try:
            page = self._decoder.decode(body)
        except (ValueError, RecursionError):
            return self._take_one_by_one(body, objects, unreadable)
        for each in page.items or ():
            objects[key_of(each.metadata)] = each
        return page

    def _take_one_by_one(self, body: bytes, objects: dict[str, T], unreadable: set[str]) -> "_Page[T] | _RawPage":
        try:
            page = _RAW_PAGE.decode(body)
        except (ValueError, RecursionError):
            raise UnexpectedAnswerError(200, "", "an answer that is no list") from None
        for raw in page.items or ():
            try:
                each = self._object_decoder.decode(raw)
            except (ValueError, RecursionError) as error:
                meta = meta_of(bytes(raw))
                key = key_of(meta) if meta else ""
                unreadable.add(key)
                self._on_unreadable(key, meta.name if meta else "", str(error))
            else:
                objects[key_of(each.metadata)] = each
        return page


class _Progress:
    """Watches that a list comes to an end."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._stale_pages = 0
        self._known = 0

    def check(self, page: "_Page[T] | _RawPage", known: int) -> None:
        """Args:
            page: One that is not the last.
            known: How many objects there are with it.

        Raises:
            UnexpectedAnswerError: It does not get on.
        """
        token = page.metadata.continue_ or ""
        if token in self._tokens:
            raise UnexpectedAnswerError(200, "", "a list that goes on at a place where it has been")
        self._tokens.add(token)
        self._stale_pages = self._stale_pages + 1 if page.items and known == self._known else 0
        self._known = known
        if self._stale_pages >= STALE_PAGES_MAX:
            raise UnexpectedAnswerError(200, "", f"a list whose last {STALE_PAGES_MAX} pages brought nothing new")
        if len(self._tokens) >= PAGES_MAX:
            raise UnexpectedAnswerError(200, "", f"a list longer than {PAGES_MAX} pages")
