"""Whatever happens to objects and connections, in whatever order: in the end the picture is the truth, at a bounded price."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.discovery.kubernetes.watch_plan import GRACE_S, WATCH_MAX_S
from tests.discovery.fakes import eventually
from tests.discovery.kubernetes.following import PODS, Following, following
from tests.fakes.kube_api import FakeKubeApi, kube_api
from tests.fakes.kube_api_store import KubeStore
from tests.fakes.kube_objects import pod

NAMES = ["a", "b", "c", "d"]

PUT = [("put", name) for name in NAMES]
DELETE = [("delete", name) for name in NAMES]
RECREATE = [("recreate", name) for name in NAMES]
RELABEL = [("relabel", name) for name in NAMES]
FAULTS = [
    (fault, "")
    for fault in (
        "cut",
        "cut within a line",
        "end early",
        "time limit",
        "compact",
        "gone as an event",
        "bookmark",
        "error 500",
        "garbage",
        "silent",
        "restart",
        "refuse lists",
        "refuse watches",
        "gone list",
        "cut list",
        "backup",
        "restore",
        "no bookmarks",
    )
]
YIELDS = [("let run", str(times)) for times in (1, 3, 10)]

steps = st.lists(st.sampled_from([*PUT, *DELETE, *RECREATE, *RELABEL, *FAULTS, *FAULTS, *YIELDS, *YIELDS]), max_size=30)
SELECTED = type(PODS)(path=PODS.path, what=PODS.what, kind=PODS.kind, label_selector="role=in")


@dataclass(slots=True)
class Course:
    """Does one step after another.

    Attributes:
        faults: How many of them may have cost requests.
    """

    api: FakeKubeApi
    follows: Following
    backup: KubeStore
    faults: int = 0
    number: int = 0

    def put(self, name: str, role: str = "in") -> None:
        self.number += 1
        self.api.put_pod(pod(name, restarts=self.number, labels={"role": role}))

    def has(self, name: str) -> bool:
        return (PODS.path, name) in self.api.store.objects

    async def change(self, what: str, name: str) -> None:
        match what:
            case "put":
                self.put(name)
            case "delete" if self.has(name):
                self.api.delete_pod(name)
            case "recreate" if self.has(name):
                self.api.delete_pod(name)
                self.put(name)
            case "relabel":
                self.put(name, "out")
            case "let run":
                for _ in range(int(name)):
                    await asyncio.sleep(0)
            case _:
                self.faults += 1
                await self.fault(what)

    async def fault(self, what: str) -> None:  # noqa: C901, one case each
        api = self.api
        match what:
            case "cut":
                api.cut_watches()
            case "cut within a line":
                api.cut_watches(within_a_line=True)
            case "end early":
                api.end_watches()
            case "time limit":
                if any(request.verb == "watch" for request in api.requests):
                    self.follows.reach_time_limit()
                api.end_watches()
            case "compact":
                api.compact()
            case "gone as an event":
                api.gone_as_event = not api.gone_as_event
            case "bookmark":
                api.send_bookmarks()
            case "error 500":
                api.send_error(500)
            case "garbage":
                api.send_line(b"<garbage>\n")
            case "silent":
                await self.go_silent()
            case "restart":
                await api.restart()
            case "refuse lists":
                api.refuse("list", 503, times=2)
            case "refuse watches":
                api.refuse("watch", 429, times=2, headers={"retry-after": "1"})
            case "gone list":
                api.refuse("list", 410, times=1)
            case "cut list":
                api.refuse("list", 200, cut_after_bytes=25)
            case "backup":
                self.backup = api.store.backup()
            case "restore":
                await api.restore(self.backup)
            case "no bookmarks":
                api.bookmarks = not api.bookmarks

    async def go_silent(self) -> None:
        """Every running watch says nothing any more; its objects change meanwhile, and its time limit passes."""
        self.api.silence_watches()
        self.put("a")
        self.follows.time.advance(WATCH_MAX_S + GRACE_S)
        await asyncio.sleep(0)


async def play(history: list[tuple[str, str]]) -> None:
    async with kube_api() as api:
        api.put_pod(pod("a", labels={"role": "in"}))
        async with following(api, SELECTED) as follows:
            course = Course(api, follows, api.store.backup())
            for what, name in history:
                await course.change(what, name)
            # After a restore from a backup only this tells a watch from a version that is not reached yet from one that works.
            await api.watched()
            api.send_bookmarks()
            course.put("last")
            await follows.converges()
            await api.watched()
            course.put("very last")
            await follows.converges()
            await eventually(lambda: follows.names[-2:] == ["last", "very last"])
            assert api.count("list") + api.count("watch") <= 4 + 6 * (course.faults + 1)
            assert not [line for line in follows.lines if line["log_level"] in ("error", "critical")]


@pytest.mark.timeout(600)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_history_ends_in_the_truth(history: list[tuple[str, str]]) -> None:
    asyncio.run(play(history))
