"""The kubelet's part, played by the test: it writes the status of Pods and removes them when they are done."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.api_client import ApiClient, path_of
from tests.kubernetes.manifest import Manifest

_NODE = "node-of-the-tests"
CONTAINER = "server"


class Kubelet:
    """The Pods of one namespace. Each method returns the Pod as it is then."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def path(self, name: str | None = None, subresource: str = "") -> str:
        """The path of a Pod, or of all."""
        return path_of("v1", "pods", self._namespace, name, subresource)

    async def create(
        self,
        name: str,
        ip: str | Sequence[str] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        ports: Sequence[int] = (8000,),
        ready: bool = True,
        phase: str = "Running",
        finalizers: Sequence[str] = (),
        grace_s: int = 30,
    ) -> Manifest:
        """A Pod on a node, which starts at once.

        Args:
            ip: Its address or addresses; None: it has none yet, and stays Pending whatever `phase` and `ready` say.
            ports: What its one container (`CONTAINER`) declares.
            grace_s: How long it may take to end after it is told to.
        """
        container = {"name": CONTAINER, "image": "server", "ports": [{"containerPort": port} for port in ports]}
        pod = {
            "metadata": {
                "name": name,
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
                "finalizers": list(finalizers),
            },
            "spec": {"nodeName": _NODE, "terminationGracePeriodSeconds": grace_s, "containers": [container]},
        }
        created = await self._api.create(self.path(), pod)
        if ip is None:
            return created
        status = {
            "phase": phase,
            "conditions": [_ready_condition(ready), {**_ready_condition(ready), "type": "ContainersReady"}],
            "containerStatuses": [_container_status(0, ready)],
            "startTime": _now(),
            **_addresses(ip),
        }
        return await self._patch_status(name, status)

    async def set_ready(self, name: str, ready: bool, *, message: str | None = None) -> Manifest:
        """The readiness probe changes its mind; nothing else changes."""
        condition = _ready_condition(ready)
        if message is not None:
            condition["message"] = message
        return await self._patch_status(name, {"conditions": [condition]})

    async def set_phase(self, name: str, phase: str) -> Manifest:
        """`Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; the conditions stay."""
        return await self._patch_status(name, {"phase": phase})

    async def set_ip(self, name: str, *ips: str) -> Manifest:
        """Other addresses; none: it loses its address."""
        return await self._patch_status(name, _addresses(ips), kind="merge")

    async def restart_container(self, name: str, *, restarts: int, ready: bool = True) -> Manifest:
        """The container has started again, for the `restarts`-th time."""
        status = {"containerStatuses": [_container_status(restarts, ready)], "conditions": [_ready_condition(ready)]}
        return await self._patch_status(name, status)

    async def set_labels(self, name: str, **labels: str | None) -> Manifest:
        """Change labels; None removes one."""
        return await self._api.patch(self.path(name), {"metadata": {"labels": labels}})

    async def annotate(self, name: str, annotations: Mapping[str, str | None]) -> Manifest:
        """Change annotations; None removes one."""
        return await self._api.patch(self.path(name), {"metadata": {"annotations": dict(annotations)}})

    async def mark_for_deletion(self, name: str, *, grace_s: int = 30) -> Manifest:
        """Somebody deletes it: it gets a deletion timestamp and stays as it is, Ready too, until `remove`."""
        return await self._api.delete(self.path(name), grace_s=grace_s)

    async def remove(self, name: str) -> None:
        """It is gone, as the kubelet reports it in the end; with a finalizer it stays until that is removed."""
        await self._api.delete(self.path(name), grace_s=0)

    async def remove_finalizers(self, name: str) -> None:
        """Whoever set them is done."""
        await self._api.patch(self.path(name), {"metadata": {"finalizers": None}})

    async def _patch_status(self, name: str, status: Mapping[str, Any], kind: str = "strategic") -> Manifest:
        return await self._api.patch(self.path(name, "status"), {"status": status}, kind=kind)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready_condition(ready: bool) -> dict[str, str]:
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": _now()}
    return condition if ready else {**condition, "reason": "ContainersNotReady"}


def _container_status(restarts: int, ready: bool) -> Manifest:
    return {
        "name": CONTAINER,
        "image": "server",
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": {"running": {"startedAt": _now()}},
    }


def _addresses(ips: str | Sequence[str]) -> dict[str, Any]:
    every = (ips,) if isinstance(ips, str) else tuple(ips)
    return {"podIP": every[0] if every else None, "podIPs": [{"ip": ip} for ip in every]}
