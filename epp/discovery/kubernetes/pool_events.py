"""Kubernetes Events on the pool: the few things that an operator should see in `kubectl describe inferencepool`.

One Event per thing, however often it happens and however many replicas see it: its name is made from what it says, and an
Event that is there already only gets a later time and a higher count.
"""

import asyncio
import contextlib
import datetime
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, Protocol

import msgspec

from epp.clock import Clock
from epp.discovery.kubernetes.api_errors import ApiError, ConflictError, NotFoundError

HELD_S = 30.0
"""What is told while no replica leads is held for so long: twice the time that a lost leader's Lease takes to end."""
WAITING_MAX = 100
"""Events that wait to be written; more are dropped, for the log has them too."""
AGAIN_AFTER_S = 600.0
"""The same Event is written again no sooner than this."""
NOTE_MAX_CHARS = 1000
"""The API server takes 1024."""
COMPONENT = "inference-epp"


class EventType(Enum):
    """As `kubectl get events` shows it."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that Events are about.

    Attributes:
        api_version: Group and version, such as `inference.networking.k8s.io/v1`.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class EventApi(Protocol):
    """The requests that are made; `epp.discovery.kubernetes.api_server.ApiServer` has them."""

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes: ...

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes: ...


class EventLog(Protocol):
    """Where it is told that Events cannot be written."""

    def info(self, event: str, **fields: object) -> object: ...


@dataclass(frozen=True, slots=True)
class _Event:
    regarding: Regarding
    type: EventType
    reason: str
    note: str

    @property
    def name(self) -> str:
        digest = hashlib.sha256("\0".join((self.regarding.uid, self.reason, self.note)).encode()).hexdigest()
        return f"{self.regarding.name[:200]}.{digest[:16]}"


class _Counted(msgspec.Struct):
    count: int | None = None


_COUNTED = msgspec.json.Decoder(_Counted)


class PoolEvents:
    """Writes Events one after another; nobody waits for them.

    Args:
        speaks: Whether this replica is the one that writes; asked for each Event.
    """

    def __init__(
        self,
        api: EventApi,
        *,
        clock: Clock,
        log: EventLog,
        speaks: Callable[[], bool] = lambda: True,
        identity: str = "",
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._clock = clock
        self._log = log
        self._speaks = speaks
        self._identity = identity
        self._now = now
        self._sleep = sleep
        self._waiting: asyncio.Queue[_Event] = asyncio.Queue(WAITING_MAX)
        self._told_at_s: dict[str, float] = {}
        self._held: dict[str, tuple[_Event, float]] = {}
        self._told_trouble = False

    @property
    def waiting(self) -> int:
        """Events that are not written yet."""
        return self._waiting.qsize()

    def tell(self, regarding: Regarding | None, kind: EventType, reason: str, note: str) -> None:
        """Have an Event written.

        Args:
            regarding: None while the pool is not known: then there is nothing to hang it on.
            reason: One word in CamelCase, for programs.
            note: A sentence, for people.
        """
        if regarding is None:
            return
        event = _Event(regarding, kind, reason, note[:NOTE_MAX_CHARS])
        now_s = self._clock.monotonic_s()
        if not self._speaks():
            if len(self._held) < WAITING_MAX:
                self._held[event.name] = event, now_s
            return
        self._enqueue(event, now_s)

    def _enqueue(self, event: _Event, now_s: float) -> None:
        if now_s - self._told_at_s.get(event.name, -AGAIN_AFTER_S) < AGAIN_AFTER_S or self._waiting.full():
            return
        self._forget_before(now_s - AGAIN_AFTER_S)
        self._told_at_s[event.name] = now_s
        self._waiting.put_nowait(event)

    def look(self) -> None:
        """Whether this replica speaks by now, so that what it held can be written; call it about each second."""
        if not self._held:
            return
        now_s = self._clock.monotonic_s()
        speaks = self._speaks()
        for name, (event, told_at_s) in list(self._held.items()):
            if speaks or now_s - told_at_s > HELD_S:
                del self._held[name]
            if speaks and now_s - told_at_s <= HELD_S:
                self._enqueue(event, now_s)

    async def run(self) -> NoReturn:
        """Write what waits, for ever."""
        while True:
            event = await self._waiting.get()
            try:
                await self._write(event)
            except ApiError as error:
                if not self._told_trouble:
                    self._told_trouble = True
                    self._log.info("events on the pool cannot be written", because=str(error))
                await self._sleep(1.0)
            else:
                self._told_trouble = False

    async def _write(self, event: _Event) -> None:
        folder = f"/api/v1/namespaces/{event.regarding.namespace}/events"
        time = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await self._api.create(folder, self._body(event, time))
        except ConflictError:
            with contextlib.suppress(NotFoundError):  # its time may be over by now
                # The answer says how often all replicas together have seen it; there is no right to read Events.
                there = await self._api.patch(f"{folder}/{event.name}", {"lastTimestamp": time})
                with contextlib.suppress(msgspec.DecodeError):
                    await self._api.patch(f"{folder}/{event.name}", {"count": (_COUNTED.decode(there).count or 1) + 1})

    def _body(self, event: _Event, time: str) -> dict[str, Any]:
        regarding = event.regarding
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": regarding.namespace},
            "involvedObject": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
            "type": event.type.value,
            "reason": event.reason,
            "message": event.note,
            "source": {"component": COMPONENT, "host": self._identity},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }

    def _forget_before(self, at_s: float) -> None:
        for name in [name for name, told_at_s in self._told_at_s.items() if told_at_s < at_s]:
            del self._told_at_s[name]
