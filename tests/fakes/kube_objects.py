"""Objects as a Kubernetes API server sends them: the fields it fills in by itself are there, too."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

CREATED = "2026-01-02T03:04:05Z"

POOL_V1 = "inference.networking.k8s.io/v1"
POOL_V1ALPHA2 = "inference.networking.x-k8s.io/v1alpha2"
EXTENSION_V1ALPHA2 = "inference.networking.x-k8s.io/v1alpha2"


def metadata(
    name: str,
    *,
    namespace: str = "default",
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    created: str = CREATED,
    deletion_timestamp: str | None = None,
) -> dict[str, Any]:
    """The metadata of an object; what is None is absent, as on the wire. Each call has another uid unless one is given."""
    found: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": str(uuid.uuid4()) if uid is None else uid,
        "creationTimestamp": created,
    }
    if labels:
        found["labels"] = dict(labels)
    if annotations:
        found["annotations"] = dict(annotations)
    if deletion_timestamp is not None:
        found["deletionTimestamp"] = deletion_timestamp
        found["deletionGracePeriodSeconds"] = 30
    return found


def pod(
    name: str,
    *,
    ip: str | None = "10.0.0.1",
    ips: Sequence[str] | None = None,
    namespace: str = "default",
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ports: Sequence[int] = (8000,),
    ready: bool = True,
    phase: str = "Running",
    restarts: int = 0,
    deletion_timestamp: str | None = None,
    created: str = CREATED,
) -> dict[str, Any]:
    """A pod of one container named `server` that declares `ports`.

    Args:
        ip: `status.podIP`; None while the pod has none yet.
        ips: `status.podIPs`; by default `ip` alone.
        ready: Whether its condition Ready is True.
        restarts: `restartCount` of the container.
    """
    container: dict[str, Any] = {"name": "server", "image": "server:1", "resources": {}}
    if ports:
        container["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in ports]
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": [
            {"type": "Initialized", "status": "True", "lastProbeTime": None, "lastTransitionTime": created},
            _ready_condition(ready, created),
            {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": created},
        ],
        "containerStatuses": [
            {
                "name": "server",
                "ready": ready,
                "restartCount": restarts,
                "started": True,
                "image": "server:1",
                "imageID": "",
                "state": {"running": {"startedAt": created}},
                "lastState": {},
            }
        ],
        "qosClass": "BestEffort",
        "startTime": created,
    }
    if ip is not None:
        status |= {"hostIP": "192.0.2.1", "podIP": ip, "podIPs": [{"ip": each} for each in (ips or (ip,))]}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata(
            name,
            namespace=namespace,
            uid=uid,
            labels=labels,
            annotations=annotations,
            created=created,
            deletion_timestamp=deletion_timestamp,
        ),
        "spec": {"containers": [container], "nodeName": "node-1", "restartPolicy": "Always", "hostNetwork": False},
        "status": status,
    }


def _ready_condition(ready: bool, since: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None, "lastTransitionTime": since}
    if not ready:
        condition |= {"reason": "ContainersNotReady", "message": "containers with unready status: [server]"}
    return condition


def inference_pool(
    name: str,
    *,
    selector: Mapping[str, str],
    ports: Sequence[int],
    version: str = "v1",
    app_protocol: str | None = None,
    namespace: str = "default",
    uid: str | None = None,
    created: str = CREATED,
) -> dict[str, Any]:
    """An InferencePool of API version `v1` (up to 8 ports) or `v1alpha2` (exactly one port)."""
    if version == "v1":
        spec: dict[str, Any] = {
            "selector": {"matchLabels": dict(selector)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": "epp",
                "port": {"number": 9002},
                "failureMode": "FailOpen",
            },
        }
        if app_protocol is not None:
            spec["appProtocol"] = app_protocol
    elif version == "v1alpha2":
        (port,) = ports
        spec = {
            "selector": dict(selector),
            "targetPortNumber": port,
            "extensionRef": {"group": "", "kind": "Service", "name": "epp", "failureMode": "FailOpen"},
        }
    else:
        raise ValueError(f"version: expected v1 or v1alpha2, found {version}")
    return {
        "apiVersion": POOL_V1 if version == "v1" else POOL_V1ALPHA2,
        "kind": "InferencePool",
        "metadata": metadata(name, namespace=namespace, uid=uid, created=created) | {"generation": 1},
        "spec": spec,
    }


def inference_objective(
    name: str,
    *,
    priority: int | None = None,
    pool: str = "pool",
    api_version: str = EXTENSION_V1ALPHA2,
    namespace: str = "default",
    uid: str | None = None,
    created: str = CREATED,
) -> dict[str, Any]:
    """An InferenceObjective; `priority` is absent when it is None."""
    return {
        "apiVersion": api_version,
        "kind": "InferenceObjective",
        "metadata": metadata(name, namespace=namespace, uid=uid, created=created) | {"generation": 1},
        "spec": {"poolRef": _pool_ref(pool)} | ({} if priority is None else {"priority": priority}),
    }


def inference_model_rewrite(
    name: str,
    *,
    rules: Sequence[tuple[Sequence[str], Sequence[tuple[str, int | None]]]],
    pool: str = "pool",
    api_version: str = EXTENSION_V1ALPHA2,
    namespace: str = "default",
    uid: str | None = None,
    created: str = CREATED,
) -> dict[str, Any]:
    """An InferenceModelRewrite.

    Args:
        rules: For each rule the models that it matches (none: every model) and its targets, as (model, weight).
    """
    return {
        "apiVersion": api_version,
        "kind": "InferenceModelRewrite",
        "metadata": metadata(name, namespace=namespace, uid=uid, created=created) | {"generation": 1},
        "spec": {"poolRef": _pool_ref(pool), "rules": [_rule(models, targets) for models, targets in rules]},
    }


def _pool_ref(name: str) -> dict[str, str]:
    return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name}


def _rule(models: Sequence[str], targets: Sequence[tuple[str, int | None]]) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "targets": [{"modelRewrite": model} | ({} if weight is None else {"weight": weight}) for model, weight in targets]
    }
    if models:
        rule["matches"] = [{"model": {"type": "Exact", "value": model}} for model in models]
    return rule
