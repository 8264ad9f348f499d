"""Which API server, and with which credentials.

Reading certificates is lightkube's part, the connection is httpx2's.
"""

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, SingleConfig
from lightkube.config.models import Cluster, Context, User

from epp.clock import Clock, SystemClock
from epp.config.wording import quote
from epp.discovery.kubernetes.credentials import user_auth
from epp.discovery.kubernetes.exec_plugin import ExecPlugin
from epp.discovery.kubernetes.kubeconfig import Kubeconfig, read_kubeconfig
from epp.discovery.kubernetes.urls import is_loopback, shown_url, url_fault
from epp.errors import ConfigError

CONNECT_MAX_S = 5.0
KUBECONFIG = "KUBECONFIG"
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
SERVICE_PORT = "KUBERNETES_SERVICE_PORT"
HOME_KUBECONFIG = ".kube/config"

_LIMITS = httpx2.Limits(max_connections=32, max_keepalive_connections=4, keepalive_expiry=30.0)
"""Each watch holds a connection of its own; requests between them are few."""
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")

FileStamp: TypeAlias = tuple[int, int, int] | None


def _socket_options() -> list[tuple[int, int, int]]:
    """Dead peers are noticed by the kernel within about half a minute, also when nothing is sent."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000)):
        option = getattr(socket, name, None)
        if option is not None:
            options.append((socket.IPPROTO_TCP, option, value))
    return options


class Trust:
    """Remembers what was made of certificates until one of their files changes: reading the system's takes 50 ms."""

    def __init__(self) -> None:
        self._made: tuple[tuple[FileStamp, ...], ssl.SSLContext] | None = None

    def context(self, stamps: tuple[FileStamp, ...], make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """What `make` gave, while `stamps` are those of that time; without any file it is made each time."""
        if self._made is not None and self._made[0] == stamps and any(stamps):
            return self._made[1]
        made = make()
        self._made = stamps, made
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One API server and the way in.

    Attributes:
        kubeconfig: What the files, or the pod's service account, say.
        origin: Where this was found, for people: `kubeconfig file /…` or `service account of this pod`.
        version: Of this program, for the user agent.
        plugin: When a plugin gives the credentials: what asks it, kept because it remembers the answer.
        trust: Likewise, for certificates.
    """

    kubeconfig: Kubeconfig
    origin: str
    version: str = "0"
    plugin: ExecPlugin | None = None
    trust: Trust = field(default_factory=Trust)

    @property
    def server(self) -> str:
        """The URL of the API server, for people: without credentials."""
        return shown_url(self._config.cluster.server)

    @property
    def namespace(self) -> str:
        """That of the context, or of the service account."""
        return self._config.namespace

    @property
    def extensions(self) -> dict[str, str]:
        """What each request must have besides: the name in the certificate, when it is another than that of the URL."""
        name = self.kubeconfig.tls_server_name
        return {} if name is None else {"sni_hostname": name}

    def client(self) -> httpx2.AsyncClient:
        """A new client with what the files say now.

        Raises:
            OSError: A file is missing, or is no certificate or key (`ssl.SSLError`).
            ValueError: What should be base64 is not.
            CredentialsError: A token cannot stand in a header.
        """
        secure = urlsplit(self._config.cluster.server).scheme == "https"
        verify = self.trust.context(self._trust_stamps(), self._read_trust) if secure else False
        proxied = self.kubeconfig.proxy_url is not None or bool(self._environment_proxies())
        # A client with its own transport would not look at the variables for proxies.
        transport = (
            None if proxied else httpx2.AsyncHTTPTransport(verify=verify, limits=_LIMITS, socket_options=_socket_options())
        )
        return httpx2.AsyncClient(
            base_url=self._config.cluster.server,
            auth=self.plugin or user_auth(self._user),
            headers={
                "user-agent": f"inference-epp/{self.version}",
                "accept": "application/json",
                # Decompressing a page of a list would hold the event loop for longer than its transfer takes.
                "accept-encoding": "identity",
            },
            verify=verify,
            limits=_LIMITS,
            timeout=httpx2.Timeout(None, connect=CONNECT_MAX_S, pool=CONNECT_MAX_S),
            proxy=self.kubeconfig.proxy_url,
            transport=transport,
            trust_env=proxied,
        )

    def stamps(self) -> tuple[FileStamp, ...]:
        """What changes when one of the files with credentials is written, or replaced by a link to another."""
        user, cluster = self._user, self._config.cluster
        return tuple(_stamp(name) for name in (cluster.certificate_auth, user.token_file, user.client_cert, user.client_key))

    def proxy_faults(self) -> list[str]:
        """What is wrong with the proxies that the environment names for this server."""
        if self.kubeconfig.proxy_url is not None:
            return []
        found = self._environment_proxies()
        faults = {name: url_fault(value, "http://proxy.example:3128") for name, value in found.items()}
        return [f"{name}: {fault}" for name, fault in faults.items() if fault is not None]

    @property
    def _config(self) -> SingleConfig:
        return self.kubeconfig.config

    @property
    def _user(self) -> User:
        return self._config.user or User()

    def _read_trust(self) -> ssl.SSLContext:
        return verify_cluster(self._config.cluster, self._user, self._config.abs_file)

    def _trust_stamps(self) -> tuple[FileStamp, ...]:
        user, cluster = self._user, self._config.cluster
        own = tuple(_stamp(name) for name in (cluster.certificate_auth, user.client_cert, user.client_key))
        if cluster.certificate_auth or cluster.certificate_auth_data:
            return own
        paths = ssl.get_default_verify_paths()
        named = (os.environ.get(paths.openssl_cafile_env), os.environ.get(paths.openssl_capath_env))
        return own + tuple(_stamp(name) for name in (*named, paths.openssl_cafile, paths.openssl_capath))

    def _environment_proxies(self) -> dict[str, str]:
        """Proxies by the name of their variable. Loopback is never behind one, as for the clients written in Go."""
        if is_loopback(urlsplit(self._config.cluster.server).hostname or ""):
            return {}
        if "*" in (os.environ.get("NO_PROXY"), os.environ.get("no_proxy")):
            return {}
        names = (*_PROXY_VARIABLES, *(name.lower() for name in _PROXY_VARIABLES))
        found = {name: os.environ.get(name, "") for name in names}
        return {name: value if "://" in value else f"http://{value}" for name, value in found.items() if value}


def find_access(
    kubeconfig: str | None,
    environ: Mapping[str, str],
    *,
    version: str = "0",
    service_account: Path = Path(SERVICE_ACCOUNT),
    home: Path | None = None,
    clock: Clock | None = None,
) -> Access:
    """The API server that `--kubeconfig`, the variable KUBECONFIG, the pod's service account or `~/.kube/config` names; in
    this order.

    Args:
        kubeconfig: Value of `--kubeconfig`.
        version: Of this program.
        service_account: Folder that Kubernetes mounts into a pod.
        home: Home folder; by default that of the variable HOME.
        clock: Tells when a token has expired; by default the system's.

    Raises:
        ConfigError: Nothing is there, or something in it is missing or wrong.
    """
    home_file = (Path(environ.get("HOME") or "/") if home is None else home) / HOME_KUBECONFIG
    if kubeconfig:
        found, origin = _from_files([Path(kubeconfig).expanduser()], "--kubeconfig")
    elif environ.get(KUBECONFIG):
        found, origin = _from_variable(environ[KUBECONFIG])
    elif environ.get(SERVICE_HOST) and ((service_account / "token").is_file() or not home_file.is_file()):
        found, origin = _from_service_account(environ, service_account), "service account of this pod"
    elif home_file.is_file():
        found, origin = _from_files([home_file], "~/.kube/config")
    else:
        raise ConfigError(
            "Kubernetes: expected --kubeconfig, the environment variable KUBECONFIG, or a pod with a service account; "
            f"found none of them, and no file {home_file}"
        )
    user = found.config.user
    plugin = None
    if user is not None and user.exec is not None and user.token_file is None and user.token is None:
        plugin = ExecPlugin(user.exec, clock or SystemClock())
    access = Access(kubeconfig=found, origin=origin, version=version, plugin=plugin)
    if faults := access.proxy_faults():
        raise ConfigError(*faults)
    problem = _try_out(access)
    if problem is not None:
        # Not within the handler of the cause: that would keep lightkube's temporary files with keys for as long as this error.
        raise ConfigError(f"{origin}: expected usable certificates and credentials, found: {problem}")
    return access


def _try_out(access: Access) -> str | None:
    """What the first request would find wrong."""
    try:
        access.client()  # has no connection yet
    except (OSError, ValueError, httpx2.InvalidURL) as error:
        return _told(error)
    return None


def _from_variable(paths: str) -> tuple[Kubeconfig, str]:
    """As kubectl: several paths are merged, and of several those that are missing are passed over."""
    named = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    there = [path for path in named if path.exists()] or named[:1]
    return _from_files(there, KUBECONFIG)


def _from_files(paths: list[Path], by: str) -> tuple[Kubeconfig, str]:
    shown = ", ".join(str(path) for path in paths)
    try:
        found = read_kubeconfig(paths)
    except ConfigError as error:
        raise ConfigError(*(f"{by}: {problem}" for problem in error.problems)) from None
    _check_server(found.config.cluster.server, f"{by}: {shown}: cluster.server")
    return found, f"kubeconfig file {shown} ({by})"


def _from_service_account(environ: Mapping[str, str], folder: Path) -> Kubeconfig:
    for name in ("token", "ca.crt", "namespace"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"service account: expected a file {folder / name}, found none: the pod must mount its service account "
                "(automountServiceAccountToken), or --kubeconfig name a file"
            )
    host, port = environ[SERVICE_HOST], environ.get(SERVICE_PORT, "")
    if not port.isdigit():
        raise ConfigError(f"{SERVICE_PORT}: expected a port, found {quote(port)}")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    config = SingleConfig(
        context_name="service account",
        context=Context(cluster="service account", namespace=(folder / "namespace").read_text().strip()),
        cluster=Cluster(server=server, certificate_auth=str(folder / "ca.crt")),
        user=User(token_file=str(folder / "token")),
    )
    _check_server(server, f"{SERVICE_HOST} and {SERVICE_PORT}")
    return Kubeconfig(config=config)


def _check_server(server: str, where: str) -> None:
    fault = url_fault(server, "https://10.0.0.1:6443")
    if fault is not None:
        raise ConfigError(f"{where}: {fault}")


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        name = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{name}"
    return str(error)


def _stamp(name: str | None) -> FileStamp:
    if name is None:
        return None
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
