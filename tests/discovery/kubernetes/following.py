"""A reflector that follows a fake API server, with time that a test moves."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epp.discovery.kubernetes.access import find_access
from epp.discovery.kubernetes.api_server import ApiServer
from epp.discovery.kubernetes.objects import Pod
from epp.discovery.kubernetes.reflector import Reflector, Resource
from tests.discovery.fakes import capturing_log, eventually, running
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeKubeApi, pods_path
from tests.fakes.kube_api_store import selector

PODS: Resource[Pod] = Resource(path=pods_path(), what="pods in namespace default", kind=Pod)


class FakeTime(FakeClock):
    """Pauses are over at once, and only move the clock; time limits end when the clock is moved past them.

    Attributes:
        pauses_s: Every pause, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []
        self._limits: list[tuple[float, asyncio.Timeout]] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 0.0:
            self.pauses_s.append(seconds)
            self.advance(seconds)
        await asyncio.sleep(0)

    def time_limit(self, seconds: float) -> asyncio.Timeout:
        limit = asyncio.timeout(None)
        self._limits.append((self.now_s + seconds, limit))
        return limit

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        for at_s, limit in self._limits:
            if at_s <= self.now_s:
                with suppress(RuntimeError):  # its block has ended
                    limit.reschedule(asyncio.get_running_loop().time())
        self._limits = [(at_s, limit) for at_s, limit in self._limits if at_s > self.now_s]


@dataclass(slots=True)
class Observed:
    """What the observer was told."""

    lists: list[tuple[str, int]] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def listed(self, name: str, duration_s: float, objects: int) -> None:
        assert duration_s >= 0.0
        self.lists.append((name, objects))

    def watch_ended(self, name: str, reason: str) -> None:
        self.endings.append(reason)

    def api_error(self, name: str, reason: str) -> None:
        self.errors.append(reason)


class Following:
    """Attributes:
    told: What each call of `on_change` was told, as resource versions by uid.
    """

    def __init__(self, api: FakeKubeApi, server: ApiServer, resource: Resource[Pod]) -> None:
        self.api = api
        self.time = FakeTime()
        self.observed = Observed()
        self.told: list[dict[str, str]] = []
        self.names: list[str] = []
        self.resource = resource
        log, self.lines = capturing_log()
        self.reflector = Reflector(
            server,
            resource,
            on_change=self._change,
            clock=self.time,
            random=random.Random(1),
            log=log,
            sleep=self.time.sleep,
            time_limit=self.time.time_limit,
            observer=self.observed,
        )

    def _change(self, objects: Mapping[str, Pod]) -> None:
        self.told.append({uid: found.metadata.resource_version for uid, found in objects.items()})
        self.names = sorted(found.metadata.name for found in objects.values())

    @property
    def truth(self) -> dict[str, str]:
        """What the API server has."""
        matches = selector(self.resource.label_selector, self.resource.field_selector)
        objects = self.api.store.list(self.resource.path, matches)
        return {found["metadata"]["uid"]: found["metadata"]["resourceVersion"] for found in objects}

    def is_true(self) -> bool:
        """Whether the last picture that was told is the API server's."""
        return bool(self.told) and self.told[-1] == self.truth

    def reach_time_limit(self) -> None:
        """Move on to the time limit of the running watch."""
        watch = next(request for request in reversed(self.api.requests) if request.verb == "watch")
        self.time.advance(float(watch.query["timeoutSeconds"]))

    async def converges(self) -> None:
        """Wait until the picture is the API server's."""
        await eventually(self.is_true)

    async def listed_again(self, lists: int = 2) -> None:
        """Wait until so many lists were read."""
        await eventually(lambda: len(self.observed.lists) >= lists)

    async def watched_again(self, watches: int = 2) -> None:
        """Wait until so many watches were asked for, and one runs."""
        await eventually(lambda: self.api.count("watch") >= watches)
        await self.api.watched()

    def warnings(self) -> list[dict[str, Any]]:
        """Log lines that people should look at."""
        return [line for line in self.lines if line["log_level"] not in ("debug", "info")]


@asynccontextmanager
async def following(
    api: FakeKubeApi, resource: Resource[Pod] = PODS, *, server: ApiServer | None = None
) -> AsyncIterator[Following]:
    """A running reflector."""
    own = server or api_server(api)
    follows = Following(api, own, resource)
    try:
        async with running(follows.reflector.run()):
            yield follows
    finally:
        await own.aclose()


def api_server(api: FakeKubeApi) -> ApiServer:
    """Requests to a fake API server."""
    with tempfile.TemporaryDirectory() as folder:
        return ApiServer(find_access(str(api.kubeconfig(Path(folder))), {}))
