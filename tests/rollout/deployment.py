"""A Deployment: a number of pods, which `roll` replaces as a rolling update with maxSurge 1 and maxUnavailable 0 does."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rollout.hooks import Hook
from tests.rollout.membership import Membership
from tests.rollout.pod import Pod, PodEnd


class Deployment:
    """The pods; the context kills what is left of them.

    Attributes:
        pods: Those that are meant to serve.
        ends: How those that were told to end did so.
    """

    def __init__(self, make_pod: Callable[[int], Pod], membership: Membership, *, hook: Hook, grace_s: float) -> None:
        """`make_pod` is given a number that no other pod has."""
        self.pods: list[Pod] = []
        self.ends: dict[str, PodEnd] = {}
        self._make_pod = make_pod
        self._membership = membership
        self._hook = hook
        self._grace_s = grace_s
        self._hook_commands: dict[str, Sequence[str | Path]] = {}
        self._made = 0
        self._stack = AsyncExitStack()
        self._leaving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await self._stack.aclose()

    async def scale_up(self, count: int) -> None:
        """So many more pods, ready and told to the picker."""
        made = [self._make_pod(self._made + number) for number in range(count)]
        self._made += count
        for pod in made:
            await self._stack.enter_async_context(pod)
        for pod in made:
            await pod.until_ready()
            self._hook_commands[pod.name] = await self._hook(pod)
            await self._membership.add(pod)
        self.pods += made

    async def roll(self, before_each: Callable[[Pod], Awaitable[None]]) -> None:
        """Replace every pod, a new one first each time; returns when the old ones have ended.

        The next pod is begun with when the last one is told to end, not when it has ended: a Deployment does not wait
        for pods with a deletion mark. `before_each` is awaited before a pod is told to end.
        """
        for old in list(self.pods):
            await self.scale_up(1)
            await before_each(old)
            self.delete(old)
        await asyncio.gather(*self._leaving)

    def delete(self, pod: Pod) -> None:
        """Tell it to end: the mark and the kubelet's work begin at the same moment."""
        self.pods.remove(pod)
        self._leaving.append(asyncio.create_task(self._leave(pod)))

    async def _leave(self, pod: Pod) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._membership.mark(pod))
            ending = group.create_task(pod.end(self._grace_s, self._hook_commands[pod.name]))
        self.ends[pod.name] = ending.result()
        await self._membership.remove(pod)
