"""A rolling update: a new pod first, then the mark and the kubelet's work at once, and no waiting for pods that leave."""

import asyncio
from pathlib import Path
from typing import Any, Self

from tests.rollout.deployment import Deployment
from tests.rollout.hooks import no_hook
from tests.rollout.pod import PodEnd


class FakePod:
    """A pod without a process."""

    def __init__(self, number: int, told: list[str]) -> None:
        self.name = f"pod-{number}"
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._told = told

    async def __aenter__(self) -> Self:
        self._told.append(f"{self.name} starts")
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def until_ready(self) -> None:
        pass

    async def end(self, grace_s: float, hook: object) -> PodEnd:
        self._told.append(f"{self.name} is to end")
        await self.may_end.wait()
        self._told.append(f"{self.name} has ended")
        return PodEnd(None, "", grace_s, killed=False)


class FakeMembership:
    """Notes what it is told."""

    def __init__(self, told: list[str]) -> None:
        self.token_file: Path | None = None
        self._told = told

    def picker_arguments(self) -> list[str]:
        return []

    def place(self, number: int) -> tuple[str, int]:
        return "127.0.0.1", number

    async def add(self, pod: Any) -> None:
        self._told.append(f"{pod.name} is added")

    async def mark(self, pod: Any) -> None:
        self._told.append(f"{pod.name} is marked")

    async def remove(self, pod: Any) -> None:
        self._told.append(f"{pod.name} is removed")


async def test_each_pod_gets_its_successor_before_it_is_told_to_end() -> None:
    told: list[str] = []
    deployment = Deployment(lambda number: FakePod(number, told), FakeMembership(told), hook=no_hook, grace_s=7.0)  # type: ignore[arg-type, return-value]

    async def before(pod: Any) -> None:
        told.append(f"before {pod.name}")

    async with deployment:
        await deployment.scale_up(2)
        told.clear()
        await deployment.roll(before)

    for old, new in ((0, 2), (1, 3)):
        events = [
            f"pod-{new} is added",
            f"before pod-{old}",
            f"pod-{old} is marked",
            f"pod-{old} has ended",
            f"pod-{old} is removed",
        ]
        assert [event for event in told if event in events] == events
    assert [pod.name for pod in deployment.pods] == ["pod-2", "pod-3"]
    assert {name: end.hook_s for name, end in deployment.ends.items()} == {"pod-0": 7.0, "pod-1": 7.0}


async def test_the_next_pod_is_replaced_while_the_last_one_still_ends() -> None:
    told: list[str] = []
    made: list[FakePod] = []

    def make(number: int) -> Any:
        made.append(FakePod(number, told))
        return made[-1]

    async def before(pod: Any) -> None:
        if pod is made[1]:
            while "pod-0 is to end" not in told:
                await asyncio.sleep(0)
            assert "pod-0 has ended" not in told
            made[0].may_end.set()

    async with Deployment(make, FakeMembership(told), hook=no_hook, grace_s=7.0) as deployment:
        await deployment.scale_up(2)
        made[0].may_end.clear()
        async with asyncio.timeout(60):
            await deployment.roll(before)

    assert "pod-0 is removed" in told
