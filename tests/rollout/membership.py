"""Who tells the picker of the pods: what a controller and the kubelet write when a pod is ready, is to go, and is gone."""

import asyncio
from pathlib import Path
from typing import Any, Protocol

from tests.flows.harness import write_entries
from tests.kubernetes.cluster import RealCluster
from tests.rollout.pod import Pod


class Membership(Protocol):
    """Each call returns when the change is written."""

    async def add(self, pod: Pod) -> None:
        """It is ready."""

    async def mark(self, pod: Pod) -> None:
        """It is to go; it still works."""

    async def remove(self, pod: Pod) -> None:
        """Its process has ended."""


class FileMembership:
    """An endpoints file, written by a controller that takes its time.

    Attributes:
        file: The file.
        first_sight: Whether `mark` writes anything.
    """

    def __init__(self, file: Path, *, engine: str, notice_s: float, first_sight: bool) -> None:
        """`notice_s` is from a change to its being written."""
        self.file = file
        self.first_sight = first_sight
        self._engine = engine
        self._notice_s = notice_s
        self._entries: dict[str, dict[str, Any]] = {}
        self._write()

    async def add(self, pod: Pod) -> None:
        address = {"address": pod.address.host, "port": pod.address.port}
        self._entries[pod.name] = {"name": pod.name, **address, "engine": self._engine, "draining": False}
        await self._notice()

    async def mark(self, pod: Pod) -> None:
        if self.first_sight:
            self._entries[pod.name]["draining"] = True
            await self._notice()

    async def remove(self, pod: Pod) -> None:
        del self._entries[pod.name]
        await self._notice()

    async def _notice(self) -> None:
        await asyncio.sleep(self._notice_s)
        self._write()

    def _write(self) -> None:
        write_entries(self.file, list(self._entries.values()))


class ApiMembership:
    """Pods in a real API server, which have addresses of their own and one port."""

    def __init__(self, cluster: RealCluster, labels: dict[str, str], *, grace_s: int) -> None:
        self._pods = cluster.pods
        self._labels = labels
        self._grace_s = grace_s

    async def add(self, pod: Pod) -> None:
        await self._pods.create(
            pod.name, pod.address.host, labels=self._labels, ports=(pod.address.port,), grace_s=self._grace_s
        )

    async def mark(self, pod: Pod) -> None:
        await self._pods.mark_for_deletion(pod.name, grace_s=self._grace_s)

    async def remove(self, pod: Pod) -> None:
        await self._pods.remove(pod.name)
