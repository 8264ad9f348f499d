"""Events on the pool: few, one per thing, and never in anybody's way."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from epp.discovery.kubernetes.api_errors import ConflictError, ForbiddenError
from epp.discovery.kubernetes.pool_events import AGAIN_AFTER_S, HELD_S, WAITING_MAX, EventType, PoolEvents, Regarding
from tests.fakes.clock import FakeClock

POOL = Regarding("inference.networking.k8s.io/v1", "InferencePool", "ns", "p", "uid-1")
FOLDER = "/api/v1/namespaces/ns/events"


class FakeEvents:
    """Events as an API server keeps them."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.requests = 0
        self.forbidden = False
        self.written = asyncio.Event()

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        assert path == FOLDER
        self._arrived()
        if body["metadata"]["name"] in self.events:
            raise ConflictError(409, "AlreadyExists", "there is one")
        self.events[body["metadata"]["name"]] = dict(body)
        return b"{}"

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        self._arrived()
        found = self.events[path.removeprefix(f"{FOLDER}/")]
        found |= body
        return msgspec.json.encode(found)

    def _arrived(self) -> None:
        self.requests += 1
        self.written.set()
        if self.forbidden:
            raise ForbiddenError(403, "Forbidden", "no access to events")


class Scene:
    def __init__(self, *, speaks: bool = True) -> None:
        self.speaks = speaks
        self.api = FakeEvents()
        self.clock = FakeClock()
        self.lines: list[str] = []
        self.slept: list[float] = []
        self.events = PoolEvents(
            self.api,
            clock=self.clock,
            log=self,
            speaks=lambda: self.speaks,
            identity="epp-0",
            now=lambda: datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def info(self, event: str, **_: object) -> None:
        self.lines.append(event)

    def warn(self, note: str) -> None:
        self.events.tell(POOL, EventType.WARNING, "UnusablePod", note)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.events.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_requests(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.api.requests < count:
                self.api.written.clear()
                await self.api.written.wait()
        await asyncio.sleep(0)


async def test_an_event_stands_on_the_pool() -> None:
    scene = Scene()
    scene.warn("pod a: expected x, found y")
    async with scene.running():
        await scene.until_requests(1)
    (event,) = scene.api.events.values()
    assert event["involvedObject"] == {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "namespace": "ns",
        "name": "p",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "UnusablePod", "pod a: expected x, found y")
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (1, *["2026-01-02T03:04:05Z"] * 2)
    assert event["source"] == {"component": "inference-epp", "host": "epp-0"}


async def test_the_same_thing_is_one_event_whoever_says_it_and_however_often() -> None:
    scene, other = Scene(), Scene()
    other.api.events = scene.api.events
    async with scene.running(), other.running():
        scene.warn("x")
        await scene.until_requests(1)
        scene.warn("x")
        scene.clock.advance(AGAIN_AFTER_S + 1)
        scene.warn("x")
        await scene.until_requests(4)
        other.warn("x")
        await other.until_requests(3)
    (event,) = scene.api.events.values()
    assert event["count"] == 3
    assert scene.api.requests == 4, "created once; eleven minutes later created in vain, patched and counted"


async def test_two_things_are_two_events() -> None:
    scene = Scene()
    scene.warn("x")
    scene.warn("y")
    async with scene.running():
        await scene.until_requests(2)
    assert sorted(event["message"] for event in scene.api.events.values()) == ["x", "y"]


async def test_without_the_right_to_write_them_it_is_told_once() -> None:
    scene = Scene()
    scene.api.forbidden = True
    scene.warn("x")
    scene.warn("y")
    async with scene.running():
        await scene.until_requests(2)
    assert scene.lines == ["events on the pool cannot be written"]
    assert scene.slept


def test_who_is_not_the_speaker_says_nothing() -> None:
    scene = Scene(speaks=False)
    scene.warn("x")
    assert scene.events.waiting == 0


def test_before_the_pool_is_known_there_is_nothing_to_hang_an_event_on() -> None:
    scene = Scene()
    scene.events.tell(None, EventType.WARNING, "InvalidPool", "x")
    assert scene.events.waiting == 0


def test_what_cannot_be_written_does_not_pile_up() -> None:
    scene = Scene()
    for number in range(3 * WAITING_MAX):
        scene.warn(str(number))
    assert scene.events.waiting == WAITING_MAX


async def test_what_was_seen_before_anybody_led_is_written_by_who_leads_then() -> None:
    """The first list of the pods comes before the Lease, and a lost leader's Lease takes a while to end."""
    scene = Scene(speaks=False)
    scene.warn("x")
    scene.events.look()
    assert scene.events.waiting == 0
    scene.clock.advance(HELD_S - 1)
    scene.speaks = True
    async with scene.running():
        scene.events.look()
        await scene.until_requests(1)
    assert [event["message"] for event in scene.api.events.values()] == ["x"]


def test_what_another_leader_has_told_long_ago_is_not_told_again() -> None:
    scene = Scene(speaks=False)
    scene.warn("x")
    scene.clock.advance(HELD_S + 1)
    scene.events.look()
    scene.speaks = True
    scene.events.look()
    assert scene.events.waiting == 0
