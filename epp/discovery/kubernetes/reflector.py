"""A picture of one resource that follows the API server's, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from random import Random
from typing import Generic, NoReturn, Protocol

import msgspec
from structlog.typing import FilteringBoundLogger

from epp.clock import Clock
from epp.discovery.discovery import Sleep
from epp.discovery.kubernetes.api_errors import ApiError, GoneError, NotFoundError, UnexpectedAnswerError, UnreachableError
from epp.discovery.kubernetes.listing import Lister, T, key_of
from epp.discovery.kubernetes.trouble_log import TroubleLog, UnreadableLog
from epp.discovery.kubernetes.watch_plan import GRACE_S, Ending, WatchPlan, is_before, is_steady, proper_end
from epp.discovery.kubernetes.watch_stream import (
    Bookmark,
    Changed,
    Deleted,
    Event,
    Failed,
    Unknown,
    WatchStream,
    meta_of,
)

UNKNOWN_TYPES_MAX = 10
"""So many unknown types of events are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[T]):
    """What is followed.

    Attributes:
        path: Of the collection, such as `/api/v1/namespaces/ns/pods`.
        what: For people, such as `pods in namespace ns`.
        kind: msgspec Struct that each object is decoded into; must have `metadata.uid` and `metadata.name`.
        label_selector: The API server sends only objects that match it.
        field_selector: Likewise.
        optional: The kind may not be installed (404): that means no objects, and it is looked again now and then.
    """

    path: str
    what: str
    kind: type[T]
    label_selector: str | None = None
    field_selector: str | None = None
    optional: bool = False

    @property
    def name(self) -> str:
        """Last part of the path, such as `pods`: for metrics."""
        return self.path.rpartition("/")[2]

    @property
    def selectors(self) -> dict[str, str | int]:
        """As parameters of a request."""
        found: dict[str, str | int] = {}
        if self.label_selector:
            found["labelSelector"] = self.label_selector
        if self.field_selector:
            found["fieldSelector"] = self.field_selector
        return found


class ReflectorApi(Protocol):
    """The requests that are made; `epp.discovery.kubernetes.api_server.ApiServer` has them."""

    async def get(self, path: str, params: dict[str, str | int]) -> bytes: ...

    def watch(self, path: str, params: dict[str, str | int]) -> AsyncGenerator[bytes, None]: ...


class ReflectorObserver(Protocol):
    """Is told what a reflector does; `name` is `Resource.name`."""

    def listed(self, name: str, duration_s: float, objects: int) -> None:
        """A whole list was read."""
        ...

    def watch_ended(self, name: str, reason: str) -> None:
        """A watch ended; `reason` is a value of `Ending`."""
        ...

    def api_error(self, name: str, reason: str) -> None:
        """A list or a watch failed; `reason` is an `ApiError.code`."""
        ...


class SilentObserver:
    """Observes nothing."""

    def listed(self, name: str, duration_s: float, objects: int) -> None: ...

    def watch_ended(self, name: str, reason: str) -> None: ...

    def api_error(self, name: str, reason: str) -> None: ...


class Reflector(Generic[T]):
    """Lists and watches one resource, for ever, and tells each change of the picture.

    The picture stays while the API server is away. What a new list does not name is gone.

    Attributes:
        listed: Whether a whole list was taken in, and told, at least once.
        fresh_at_s: When the API server last proved the picture to be current (by a list, an event, a bookmark, or the end of
            a watch at its time limit), on the clock's `monotonic_s`; None before the first list.
    """

    def __init__(
        self,
        api: ReflectorApi,
        resource: Resource[T],
        *,
        on_change: Callable[[Mapping[str, T]], None],
        clock: Clock,
        random: Random,
        log: FilteringBoundLogger,
        sleep: Sleep = asyncio.sleep,
        time_limit: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
        observer: ReflectorObserver | None = None,
    ) -> None:
        """Args:
        on_change: Gets all objects by `key_of`, once after each list and once for all events that came together; the mapping
            changes later, so what is to be kept must be copied.
        time_limit: Raises TimeoutError when its block takes longer than so many seconds.
        """
        self.listed = False
        self.fresh_at_s: float | None = None
        self._api = api
        self._resource = resource
        self._on_change = on_change
        self._clock = clock
        self._log = log
        self._sleep = sleep
        self._time_limit = time_limit
        self._observer = observer or SilentObserver()
        self._plan = WatchPlan(random)
        self._unreadable = UnreadableLog(log, resource.what)
        self._lister = Lister(
            api, resource.path, resource.selectors, resource.kind, on_unreadable=self._unreadable.unreadable, sleep=sleep
        )
        self._decoder = msgspec.json.Decoder(resource.kind)
        self._objects: dict[str, T] = {}
        self._version = ""
        self._changed = asyncio.Event()
        self._list_trouble = TroubleLog(log, resource.what, "to list them")
        self._watch_trouble = TroubleLog(log, resource.what, "to watch them")
        self._brought_event = False
        self._told_unknown: set[str] = set()

    async def run(self) -> NoReturn:
        """Follow the resource; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_changes(), name=f"tell {self._resource.name}")
            await self._follow()
        raise AssertionError("following goes on for ever")

    async def _tell_changes(self) -> NoReturn:
        """Call `on_change`, once for all that came together: this task runs when the other has to wait for more."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                self._on_change(self._objects)
            except Exception:  # noqa: BLE001 - a bug must not end all replicas at once; what was known goes on
                self._log.exception("bug_in_discovery", what=self._resource.what)
                continue
            self.listed = True

    async def _follow(self) -> NoReturn:
        while True:
            pause_s = await self._list()
            if pause_s is None:
                pause_s = await self._watch()
            if pause_s > 0.0:
                await self._sleep(pause_s)

    # ── lists ──

    async def _list(self) -> float | None:
        """Read the whole list; how long to wait before the next try in seconds, or None when the picture is current."""
        began_s = self._clock.monotonic_s()
        try:
            listed = await self._lister.read()
        except ApiError as error:
            if self._resource.optional and isinstance(error, NotFoundError):
                return self._not_installed(began_s)
            self._observer.api_error(self._resource.name, error.code)
            self._list_trouble.failed(error)
            return self._plan.after_list_error(error)
        self._list_trouble.worked()
        self._unreadable.listed(listed.unreadable)
        kept = {uid: self._objects[uid] for uid in listed.unreadable if uid in self._objects}
        self._replace(listed.objects | kept if kept else listed.objects, began_s)
        self._version = listed.version
        self._observer.listed(self._resource.name, self._clock.monotonic_s() - began_s, len(listed.objects))
        return None

    def _not_installed(self, began_s: float) -> float:
        self._list_trouble.worked()
        if self._objects or not self.listed:
            self._log.info("kubernetes kind is not installed", what=self._resource.what)
        self._replace({}, began_s)
        return self._plan.while_absent()

    def _replace(self, objects: dict[str, T], as_of_s: float) -> None:
        self._objects = objects
        self.fresh_at_s = as_of_s
        self._changed.set()

    # ── watches ──

    async def _watch(self) -> float:
        """Watch, and watch again, until the list must be read again; how long to wait before that, in seconds."""
        while True:
            limit_s = self._plan.watch_limit_s()
            began_s = self._clock.monotonic_s()
            self._brought_event = False
            ending, error = await self._watch_once(limit_s, began_s)
            lived_s = self._clock.monotonic_s() - began_s
            if ending is Ending.TIMED_OUT:
                self.fresh_at_s = self._clock.monotonic_s()
            step = self._plan.after_watch(ending, lived_s=lived_s, brought_event=self._brought_event, error=error)
            self._tell_ending(ending, error, lived_s)
            if not step.resume:
                return step.pause_s

    async def _watch_once(self, limit_s: int, began_s: float) -> tuple[Ending, ApiError | None]:
        params = {
            **self._resource.selectors,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": limit_s,
        }
        stream = WatchStream()
        try:
            async with self._time_limit(limit_s + GRACE_S), aclosing(self._api.watch(self._resource.path, params)) as chunks:
                async for chunk in chunks:
                    error = self._take(stream.feed(chunk))
                    if error is not None:
                        return _ending_of(error), error
        except TimeoutError:
            return Ending.SILENT, None
        except ApiError as error:
            return _ending_of(error), error
        if stream.in_a_line:
            return Ending.CUT, None
        return proper_end(self._clock.monotonic_s() - began_s, limit_s), None

    def _tell_ending(self, ending: Ending, error: ApiError | None, lived_s: float) -> None:
        name = self._resource.name
        self._observer.watch_ended(name, ending.value)
        if ending is Ending.TIMED_OUT or is_steady(lived_s, self._brought_event):
            self._watch_trouble.worked()
        if ending is Ending.TIMED_OUT:
            return
        if error is not None:
            self._observer.api_error(name, error.code)
        ended = f"a watch that ended after {lived_s:.1f} s ({ending.value})"
        self._watch_trouble.failed(error or UnreachableError(None, "", ended))

    def _take(self, events: list[Event]) -> ApiError | None:
        """Bring events into the picture; the error that ends the watch, if there is one."""
        for event in events:
            match event:
                case Changed(raw):
                    self._put(raw)
                case Deleted(raw):
                    if not self._drop(raw):
                        return UnexpectedAnswerError(200, "", "a DELETED event without metadata")
                case Bookmark(version):
                    if is_before(version, self._version):
                        return GoneError(410, "", f"a bookmark of version {version} after version {self._version}")
                    self._version = version
                case Unknown(type=unknown):
                    self._tell_unknown(unknown)
                case Failed(error):
                    return error
            self._brought_event = True
            self.fresh_at_s = self._clock.monotonic_s()
        return None

    def _put(self, raw: bytes) -> None:
        meta = meta_of(raw)
        try:
            decoded = self._decoder.decode(raw)
        except (ValueError, RecursionError) as error:
            self._unreadable.unreadable("" if meta is None else key_of(meta), "" if meta is None else meta.name, str(error))
        else:
            self._objects[key_of(decoded.metadata)] = decoded
            self._unreadable.readable(key_of(decoded.metadata))
            self._changed.set()
        if meta is not None and meta.resource_version:
            self._version = meta.resource_version

    def _drop(self, raw: bytes) -> bool:
        meta = meta_of(raw)
        if meta is None:
            return False
        self._unreadable.readable(key_of(meta))
        if self._objects.pop(key_of(meta), None) is not None:
            self._changed.set()
        if meta.resource_version:
            self._version = meta.resource_version
        return True

    # ── oddities ──

    def _tell_unknown(self, event_type: str) -> None:
        if event_type not in self._told_unknown and len(self._told_unknown) < UNKNOWN_TYPES_MAX:
            self._told_unknown.add(event_type)
            self._log.info("kubernetes event of an unknown type is passed over", what=self._resource.what, type=event_type)


def _ending_of(error: ApiError) -> Ending:
    if isinstance(error, GoneError):
        return Ending.GONE
    return Ending.CUT if isinstance(error, UnreachableError) else Ending.REFUSED
