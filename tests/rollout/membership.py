"""Who tells the picker of the pods: what a controller and the kubelet write when a pod is ready, is to go, and is gone."""

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.flows.harness import write_entries
from tests.kubernetes.cluster import RealCluster
from tests.kubernetes.scene import LABELS, POOL, pool_arguments
from tests.kubernetes.server_process import unused_port
from tests.rollout.pod import Pod
from tests.rollout.practice import Pace, Practice


class Membership(Protocol):
    """The pods as the picker is told of them. `add`, `mark` and `remove` return when the change is written.

    Attributes:
        token_file: With the admin token of the picker, where a pod's address is not that of the hook's calls.
    """

    token_file: Path | None

    def picker_arguments(self) -> list[str]:
        """What follows `epp serve`."""

    def place(self, number: int) -> tuple[str, int]:
        """Address and port for a new pod; port 0 is any."""

    async def add(self, pod: Pod) -> None:
        """It is ready."""

    async def mark(self, pod: Pod) -> None:
        """It is to go; it still works."""

    async def remove(self, pod: Pod) -> None:
        """Its process has ended."""


class FileMembership:
    """An endpoints file, written by a controller that takes its time. All pods have one address."""

    def __init__(self, folder: Path, engine: str, practice: Practice, pace: Pace) -> None:
        self.token_file: Path | None = None
        self._file = folder / "endpoints.json"
        self._engine = engine
        self._marks = practice.first_sight
        self._notice_s = pace.notice_s
        self._entries: dict[str, dict[str, Any]] = {}
        self._write()

    def picker_arguments(self) -> list[str]:
        return ["--endpoints-file", str(self._file)]

    def place(self, number: int) -> tuple[str, int]:
        return "127.0.0.1", 0

    async def add(self, pod: Pod) -> None:
        address = {"address": pod.address.host, "port": pod.address.port}
        self._entries[pod.name] = {"name": pod.name, **address, "engine": self._engine, "draining": False}
        await self._notice()

    async def mark(self, pod: Pod) -> None:
        if self._marks:
            self._entries[pod.name]["draining"] = True
            await self._notice()

    async def remove(self, pod: Pod) -> None:
        del self._entries[pod.name]
        await self._notice()

    async def _notice(self) -> None:
        await asyncio.sleep(self._notice_s)
        self._write()

    def _write(self) -> None:
        write_entries(self._file, list(self._entries.values()))


class ClusterMembership:
    """Pods of an InferencePool in a real API server. Each has an address of its own, and all have one port."""

    def __init__(self, cluster: RealCluster, folder: Path, engine: str, pace: Pace) -> None:
        token_file = folder / "token"
        token_file.write_text(secrets.token_hex())
        self.token_file: Path | None = token_file
        self._cluster = cluster
        self._annotations: Mapping[str, str] = {"inference-epp/engine": engine}
        self._grace_s = round(pace.grace_s)
        self._network = f"127.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
        self._port = unused_port()

    async def create_pool(self) -> None:
        """The InferencePool, before the picker starts."""
        await self._cluster.create_pool(POOL, LABELS, [self._port])

    def picker_arguments(self) -> list[str]:
        return pool_arguments(self._cluster, "--admin-token-file", str(self.token_file))

    def place(self, number: int) -> tuple[str, int]:
        return f"{self._network}.{number + 1}", self._port

    async def add(self, pod: Pod) -> None:
        await self._cluster.pods.create(
            pod.name,
            pod.address.host,
            labels=LABELS,
            annotations=self._annotations,
            ports=(pod.address.port,),
            grace_s=self._grace_s,
        )

    async def mark(self, pod: Pod) -> None:
        await self._cluster.pods.mark_for_deletion(pod.name, grace_s=self._grace_s)

    async def remove(self, pod: Pod) -> None:
        await self._cluster.pods.remove(pod.name)
