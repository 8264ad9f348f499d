"""Every setting, declared once: name, type, default, unit, range, flag, key in the configuration file, and one sentence.

A flag beats the environment (`EPP_<FLAG>`), the environment beats the configuration file, the file beats the default.
The groups below are what the parts of the program get; `epp.config.loader` fills them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from epp.config import kinds
from epp.config.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting.

    Attributes:
        kind: How it is written and read, with its range.
        sentence: What it does, for `--help`.
        flag: `--name` on the command line; None when it can only stand in the file.
        key: Dotted path in the configuration file; None when it can only be a flag.
        repeatable: The flag may be given several times; the value is a tuple.
        joined: The flag may be given several times, which is the same as its values with commas between.
    """

    kind: Kind[Any]
    sentence: str
    flag: str | None = None
    key: str | None = None
    repeatable: bool = False
    joined: bool = False

    @property
    def variable(self) -> str | None:
        """The environment variable that also sets it."""
        return None if self.flag is None else "EPP_" + self.flag.removeprefix("--").replace("-", "_").upper()


def setting(kind: Kind[Any], default: Any, sentence: str, **where: Any) -> Any:
    """Declare a setting as a dataclass field; `where` is the rest of `Setting`."""
    return field(default=default, metadata={"setting": Setting(kind=kind, sentence=sentence, **where)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Ports, transport security and health names."""

    host: str = setting(kinds.TEXT, "", "Address to bind on every port; default all, IPv4 and IPv6.", flag="--host")
    grpc_port: int = setting(
        kinds.PORT, 9002, "Port that Envoy's ext_proc filter talks to; 0 takes a free one.", flag="--grpc-port"
    )
    grpc_health_port: int = setting(
        kinds.PORT, 9003, "Port of a second gRPC health service, without TLS.", flag="--grpc-health-port"
    )
    metrics_port: int = setting(
        kinds.PORT, 9090, "Port of metrics, dashboard and admin API (plain HTTP).", flag="--metrics-port"
    )
    secure_serving: bool = setting(
        kinds.BOOLEAN,
        True,
        "TLS on the ext_proc port; without --cert-path with a self-signed certificate.",
        flag="--secure-serving",
    )
    cert_path: str | None = setting(
        kinds.TEXT_OR_NOTHING, None, "Folder with tls.crt and tls.key for the ext_proc port.", flag="--cert-path"
    )
    enable_cert_reload: bool = setting(
        kinds.BOOLEAN,
        False,
        "Serve changed files of --cert-path to new connections without a restart.",
        flag="--enable-cert-reload",
    )
    transport: str = setting(kinds.choice("socket", "grpcio"), "socket", "What carries gRPC.", flag="--transport")
    grpc_socket: str | None = setting(
        kinds.TEXT, None, "Unix socket that Envoy beside it talks to, besides the port; without TLS.", flag="--grpc-socket"
    )
    client_ca: str | None = setting(
        kinds.TEXT,
        None,
        "File with CA certificates; clients of the ext_proc port must then show a certificate of theirs.",
        flag="--client-ca",
    )
    drain_timeout_s: float = setting(
        kinds.DURATION,
        30.0,
        "After SIGTERM, how long running streams may go on.",
        flag="--drain-timeout",
        key="drain.timeout",
    )
    health_aliases: tuple[str, ...] = setting(
        kinds.TEXT_LIST, (), "Further service names that the gRPC health service answers.", key="health.aliases"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Where the endpoints come from; exactly one of them."""

    endpoints: tuple[str, ...] = setting(
        kinds.TEXT, (), "One endpoint as ip:port; may be repeated.", flag="--endpoint", repeatable=True
    )
    endpoints_file: str | None = setting(
        kinds.TEXT, None, "YAML or JSON file that names the endpoints; watched.", flag="--endpoints-file"
    )
    endpoints_dns: str | None = setting(
        kinds.TEXT,
        None,
        "name:port whose A and AAAA records are the endpoints; resolved again by TTL.",
        flag="--endpoints-dns",
    )
    pool_name: str | None = setting(
        kinds.DNS_NAME, None, "InferencePool whose pods are the endpoints; needs Kubernetes.", flag="--pool-name"
    )
    endpoint_selector: str | None = setting(
        kinds.TEXT_OR_NOTHING,
        None,
        "Label selector of the pods that are the endpoints, with --endpoint-target-ports; needs Kubernetes, no CRD.",
        flag="--endpoint-selector",
    )
    endpoint_target_ports: tuple[int, ...] = setting(
        kinds.PORTS, (), "Ports of each pod of --endpoint-selector, at most 8.", flag="--endpoint-target-ports", joined=True
    )

    @property
    def in_kubernetes(self) -> bool:
        """Whether the endpoints are pods."""
        return self.pool_name is not None or self.endpoint_selector is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """How the API server is reached and read, when the endpoints are pods."""

    kubeconfig: str | None = setting(
        kinds.TEXT_OR_NOTHING,
        None,
        "Which API server, and with which credentials; else KUBECONFIG, else the pod's service account.",
        flag="--kubeconfig",
    )
    pool_namespace: str | None = setting(
        kinds.DNS_LABEL,
        None,
        "Namespace of the pool and its pods; default that of the pod or of the kubeconfig's context.",
        flag="--pool-namespace",
    )
    pool_group: str = setting(
        kinds.choice("inference.networking.k8s.io", "inference.networking.x-k8s.io"),
        "inference.networking.k8s.io",
        "API group of the InferencePool: v1 of the first, v1alpha2 of the second.",
        flag="--pool-group",
    )
    ip_family: str = setting(
        kinds.choice("auto", "ipv4", "ipv6"),
        "auto",
        "Which address of pods with two is used; auto takes the pod's first.",
        flag="--endpoint-ip-family",
    )
    leader_election: bool = setting(
        kinds.BOOLEAN,
        False,
        "Hold a Lease that names one of the replicas; all of them serve.",
        flag="--ha-enable-leader-election",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    """How model servers' metrics are read."""

    enabled: bool = setting(
        kinds.BOOLEAN,
        True,
        "Read the model servers' metrics; false makes no calls at all and balances on own counts.",
        key="scrape.enabled",
    )
    interval_s: float = setting(
        kinds.duration(minimum_s=0.001),
        0.05,
        "Pause between two scrapes of one endpoint; stretched when pages are slow or endpoints many.",
        flag="--refresh-metrics-interval",
        key="scrape.interval",
    )
    staleness_s: float = setting(
        kinds.duration(minimum_s=0.003),
        2.0,
        "Metrics older than this never make an endpoint better than average; at least three intervals.",
        flag="--metrics-staleness-threshold",
        key="scrape.stalenessThreshold",
    )
    timeout_s: float = setting(kinds.duration(minimum_s=0.01), 1.0, "How long one scrape may take.", key="scrape.timeout")
    max_rate_per_second: float = setting(
        kinds.number(minimum=1),
        200.0,
        "Upper bound of scrapes per second over all endpoints; intervals stretch to keep it.",
        key="scrape.maxRatePerSecond",
    )
    max_page_bytes: int = setting(kinds.SIZE, 8 << 20, "Longer metrics pages are an error.", key="scrape.maxPageBytes")
    scheme: str | None = setting(
        kinds.choice("http", "https"),
        None,
        "http or https for all endpoints that do not say.",
        flag="--model-server-metrics-scheme",
        key="scrape.scheme",
    )
    path: str | None = setting(
        kinds.PATH,
        None,
        "Metrics path of all endpoints that do not say; default what the engine uses.",
        flag="--model-server-metrics-path",
        key="scrape.path",
    )
    port: int | None = setting(
        kinds.PORT,
        None,
        "Metrics port of all endpoints that do not say; default the serving port.",
        flag="--model-server-metrics-port",
        key="scrape.port",
    )
    insecure_skip_verify: bool = setting(
        kinds.BOOLEAN,
        True,
        "Accept any certificate of a metrics page (model servers sign their own).",
        flag="--model-server-metrics-https-insecure-skip-verify",
        key="scrape.insecureSkipVerify",
    )
    headers: tuple[tuple[str, str], ...] = setting(
        kinds.TEXT_MAP, (), "Headers sent with every scrape, such as an API key.", key="scrape.headers"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Memory and time that requests may take in the picker."""

    max_request_body_bytes: int = setting(
        kinds.SIZE, 64 << 20, "A longer request body is answered 413.", key="limits.maxRequestBodyBytes"
    )
    max_buffered_bytes: int = setting(
        kinds.SIZE,
        512 << 20,
        "Bytes of all bodies held at once; beyond it bodies pass through and picks are made on headers.",
        key="limits.maxBufferedBytes",
    )
    request_body_timeout_s: float = setting(
        kinds.duration(minimum_s=0.1),
        60.0,
        "A body that stops for this long before its end is answered 408.",
        key="limits.requestBodyTimeout",
    )
    max_concurrent_streams: int = setting(
        kinds.COUNT, 10_000, "Requests that one connection of Envoy may have open at once.", key="limits.maxConcurrentStreams"
    )
    max_connections: int = setting(kinds.COUNT, 4_096, "Connections to the ext_proc port at once.", key="limits.maxConnections")
    max_message_bytes: int = setting(
        kinds.SIZE,
        128 << 20,
        "Largest gRPC message that is accepted.",
        flag="--grpc-max-recv-msg-size",
        key="limits.maxMessageBytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What a request must look like."""

    models: tuple[str, ...] = setting(
        kinds.TEXT_LIST,
        (),
        "Names of the models that are served; they keep their own label in metrics.",
        key="requests.models",
    )
    strict: bool = setting(
        kinds.BOOLEAN,
        False,
        "Answer 400 to a body without a model and 404 to a model not in requests.models.",
        key="requests.strict",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When an endpoint counts as stuck."""

    stall_after_s: float = setting(
        kinds.duration(minimum_s=1),
        30.0,
        "Time without progress after which an endpoint only gets probes; ten times that unless its metrics call it idle.",
        key="health.stallAfter",
    )
    stalled_requests: int = setting(kinds.COUNT, 3, "How many unanswered requests it takes.", key="health.stalledRequests")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSettings:
    """What to do when endpoints drain."""

    last_resort: bool = setting(
        kinds.BOOLEAN,
        False,
        "When every endpoint drains, pick a draining one instead of answering 503.",
        key="drain.lastResort",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Drain calls, and the other replicas that are told of them."""

    token_file: str | None = setting(
        kinds.TEXT_OR_NOTHING,
        None,
        "File with the token that lets a caller drain any endpoint; others may drain those at their own address only.",
        flag="--admin-token-file",
        key="admin.tokenFile",
    )
    peers: tuple[str, ...] = setting(
        kinds.TEXT,
        (),
        "Metrics port of another replica as http://host:port, which is told of drain calls; may be repeated.",
        flag="--peer",
        repeatable=True,
    )
    peers_dns: str | None = setting(
        kinds.TEXT_OR_NOTHING,
        None,
        "name:port whose A and AAAA records are the replicas (a headless Service); resolved again by TTL.",
        flag="--peers-dns",
    )
    peer_timeout_s: float = setting(
        kinds.duration(minimum_s=0.01),
        0.5,
        "How long another replica may take to answer a drain call; a hook that calls twice waits 2s for both answers.",
        key="admin.peerTimeout",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Logging."""

    level: str = setting(
        kinds.choice("debug", "info", "warning", "error"), "info", "Lowest level that is logged.", flag="--log-level"
    )
    format: str = setting(
        kinds.choice("json", "console"), "json", "One JSON object a line, or text for people.", flag="--log-format"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of `epp serve`."""

    server: ServerSettings = field(default_factory=ServerSettings)
    source: SourceSettings = field(default_factory=SourceSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    log: LogSettings = field(default_factory=LogSettings)


GROUPS: tuple[tuple[str, type[Any]], ...] = (
    ("server", ServerSettings),
    ("source", SourceSettings),
    ("kubernetes", KubernetesSettings),
    ("scrape", ScrapeSettings),
    ("limits", LimitSettings),
    ("requests", RequestSettings),
    ("health", HealthSettings),
    ("drain", DrainSettings),
    ("admin", AdminSettings),
    ("log", LogSettings),
)


def declared() -> Sequence[tuple[str, str, Setting, Any]]:
    """All declarations as (group, attribute, declaration, default)."""
    return [(group, f.name, f.metadata["setting"], f.default) for group, cls in GROUPS for f in fields(cls)]
