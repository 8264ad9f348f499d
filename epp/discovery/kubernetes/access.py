"""Which API server, and with which credentials.

Reading kubeconfig values into credentials is lightkube's part (token files that are read again after a 401, plugins, client
certificates), the connection is httpx2's.
"""

import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.exceptions import ConfigError as LightkubeConfigError

from epp.config.wording import quote
from epp.discovery.kubernetes.kubeconfig import Kubeconfig, read_kubeconfig
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One API server and the way in.

    Attributes:
        kubeconfig: For lightkube.
        origin: Where this was found, for people: `kubeconfig file /…` or `service account of this pod`.
        version: Of this program, for the user agent.
        plugin_auth: When a plugin gives the credentials: what asks it, kept because it remembers the answer.
    """

    kubeconfig: Kubeconfig
    origin: str
    version: str = "0"
    plugin_auth: httpx2.Auth | None = None

    @property
    def server(self) -> str:
        """The URL of the API server, for people: without credentials."""
        url = urlsplit(self._config.cluster.server)
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()

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
        """
        secure = self._config.cluster.server.startswith("https:")
        verify = self._trust() if secure else False
        proxied = self.kubeconfig.proxy_url is not None or self._environment_has_a_proxy()
        # A client with its own transport would not look at the variables for proxies.
        transport = (
            None if proxied else httpx2.AsyncHTTPTransport(verify=verify, limits=_LIMITS, socket_options=_socket_options())
        )
        return httpx2.AsyncClient(
            base_url=self._config.cluster.server,
            auth=self.plugin_auth or user_auth(self._user),
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

    @property
    def _config(self) -> SingleConfig:
        return self.kubeconfig.config

    @property
    def _user(self) -> User:
        return self._config.user or User()

    def _trust(self) -> ssl.SSLContext:
        return verify_cluster(self._config.cluster, self._user, self._config.abs_file)

    def _environment_has_a_proxy(self) -> bool:
        """Loopback is never behind a proxy, as for the clients written in Go."""
        if _is_loopback(urlsplit(self._config.cluster.server).hostname or ""):
            return False
        return any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXY_VARIABLES)


def find_access(
    kubeconfig: str | None,
    environ: Mapping[str, str],
    *,
    version: str = "0",
    service_account: Path = Path(SERVICE_ACCOUNT),
    home: Path | None = None,
) -> Access:
    """The API server that `--kubeconfig`, the variable KUBECONFIG, the pod's service account or `~/.kube/config` names; in
    this order.

    Args:
        kubeconfig: Value of `--kubeconfig`.
        version: Of this program.
        service_account: Folder that Kubernetes mounts into a pod.
        home: Home folder; by default that of the variable HOME.

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
    access, problem = _try_out(found, origin, version)
    if problem is not None:
        # Not within the handler of the cause: that would keep lightkube's temporary files with keys for as long as this error.
        raise ConfigError(f"{origin}: expected usable certificates and credentials, found: {problem}")
    return access


def _try_out(found: Kubeconfig, origin: str, version: str) -> tuple[Access, str | None]:
    """The access, and what the first request would find wrong with it."""
    access = Access(kubeconfig=found, origin=origin, version=version)
    user = found.config.user
    try:
        if user is not None and user.exec is not None:
            access = replace(access, plugin_auth=user_auth(user))
        access.client()  # has no connection yet
    except (OSError, ValueError, LightkubeConfigError, httpx2.InvalidURL) as error:
        return access, _told(error)
    return access, None


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
    return Kubeconfig(config=config)


def _check_server(server: str, where: str) -> None:
    try:
        url = urlsplit(server)
        well = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        well = False
    if not well:
        raise ConfigError(f"{where}: expected a URL such as https://10.0.0.1:6443, found {quote(server.rpartition('@')[2])}")


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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
