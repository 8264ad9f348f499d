"""What is read of Kubernetes objects: msgspec Structs with just those fields.

Decoding is lenient where an API server is: fields that are not named here are skipped, and what is absent or null gets its
default. For a map, a list or a text that may be missing, that default is None, so that readers say what absence means to
them (`pod.metadata.labels or {}`). A value of a wrong type raises `msgspec.ValidationError` for that object only.

Structs are not tracked by the garbage collector: they are trees, and thousands of them live as long as their pods.
Field names and shapes: the core API v1, and `api/v1`, `apix/v1alpha2` of sigs.k8s.io/gateway-api-inference-extension v1.5.0
(v1.4.0 for the InferencePool of v1alpha2).
"""

from msgspec import Struct, field

POOL_KIND = "InferencePool"


class _Read(Struct, frozen=True, gc=False, rename="camel"):
    """Base of everything that is read."""


class ObjectMeta(_Read, frozen=True):
    """`metadata` of every object.

    Attributes:
        resource_version: Opaque; equal for equal contents of one object.
        creation_timestamp: RFC 3339 in UTC with whole seconds, so that order of text is order of time.
        deletion_timestamp: Set once deletion was asked for, whatever else the object says.
    """

    name: str
    uid: str = ""
    namespace: str | None = None
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


# ── pods ──


class ContainerPort(_Read, frozen=True):
    """A port that a container declares; `protocol` None means TCP."""

    container_port: int
    protocol: str | None = None


class Container(_Read, frozen=True):
    """A container, or an init container; one of those that restarts always is a sidecar and may serve."""

    name: str
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class PodSpec(_Read, frozen=True):
    """`spec` of a pod."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str | None = None


class PodIp(_Read, frozen=True):
    """One of the addresses of a pod."""

    ip: str | None = None


class PodCondition(_Read, frozen=True):
    """A condition such as `Ready`; `status` is `True`, `False` or `Unknown`."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class ContainerStatus(_Read, frozen=True):
    """How a container fares."""

    name: str
    restart_count: int = 0


class PodStatus(_Read, frozen=True):
    """`status` of a pod.

    Attributes:
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pod_ip: The address of the cluster's first family.
        pod_ips: One address a family, the first one equal to `pod_ip`.
    """

    phase: str | None = None
    pod_ip: str | None = field(default=None, name="podIP")
    pod_ips: list[PodIp] | None = field(default=None, name="podIPs")
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(_Read, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None


# ── pools ──


class MatchLabels(_Read, frozen=True):
    """The selector of an InferencePool v1."""

    match_labels: dict[str, str] | None = None


class TargetPort(_Read, frozen=True):
    """A port that every pod of the pool serves on."""

    number: int


class InferencePoolSpec(_Read, frozen=True):
    """`spec` of an InferencePool v1."""

    selector: MatchLabels | None = None
    target_ports: list[TargetPort] | None = None
    app_protocol: str | None = None


class InferencePool(_Read, frozen=True):
    """An InferencePool of `inference.networking.k8s.io/v1`."""

    metadata: ObjectMeta
    spec: InferencePoolSpec | None = None


class InferencePoolV1Alpha2Spec(_Read, frozen=True):
    """`spec` of an InferencePool v1alpha2."""

    selector: dict[str, str] | None = None
    target_port_number: int | None = None


class InferencePoolV1Alpha2(_Read, frozen=True):
    """An InferencePool of `inference.networking.x-k8s.io/v1alpha2`."""

    metadata: ObjectMeta
    spec: InferencePoolV1Alpha2Spec | None = None


# ── what refers to a pool ──


class PoolReference(_Read, frozen=True):
    """`spec.poolRef`, which names a pool in the object's own namespace."""

    name: str
    group: str | None = None
    kind: str | None = None

    def names(self, pool_name: str, pool_group: str) -> bool:
        """Whether this is the pool; a group or a kind that is left out fits any."""
        return self.name == pool_name and (self.group or pool_group) == pool_group and (self.kind or POOL_KIND) == POOL_KIND


class InferenceObjectiveSpec(_Read, frozen=True):
    """`spec` of an InferenceObjective; no priority means 0, and the higher the more important."""

    pool_ref: PoolReference | None = None
    priority: int | None = None


class InferenceObjective(_Read, frozen=True):
    """An InferenceObjective of either API group."""

    metadata: ObjectMeta
    spec: InferenceObjectiveSpec | None = None


class ModelMatch(_Read, frozen=True):
    """Which `model` of a request's body is meant; `type` None means `Exact`, the only one there is."""

    value: str
    type: str | None = None


class RewriteMatch(_Read, frozen=True):
    """One condition of a rule."""

    model: ModelMatch | None = None


class TargetModel(_Read, frozen=True):
    """A model that a rule sends requests to."""

    model_rewrite: str
    weight: int | None = None


class InferenceModelRewriteRule(_Read, frozen=True):
    """A rule: any of `matches` is enough, and none at all fits every request."""

    matches: list[RewriteMatch] | None = None
    targets: list[TargetModel] | None = None


class InferenceModelRewriteSpec(_Read, frozen=True):
    """`spec` of an InferenceModelRewrite."""

    pool_ref: PoolReference | None = None
    rules: list[InferenceModelRewriteRule] | None = None


class InferenceModelRewrite(_Read, frozen=True):
    """An InferenceModelRewrite of either API group."""

    metadata: ObjectMeta
    spec: InferenceModelRewriteSpec | None = None
