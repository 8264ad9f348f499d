"""kube-apiserver and its etcd: processes, keys, users."""

import base64
import contextlib
import http.client
import secrets
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.kubernetes.certificates import key_pem, new_key, server_keys
from tests.kubernetes.programs import require_etcd, require_kube_apiserver
from tests.kubernetes.server_process import ServerProcess, unused_port

ADMIN = "admin"
"""The user who may do everything."""
_ASK_S = 20.0
_HOST = "127.0.0.1"


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


class ControlPlane:
    """One API server with the etcd that is its memory. It belongs to no event loop.

    There are no controllers: nobody makes Pods of a Deployment or removes what is in a deleted namespace. There is no kubelet:
    a Pod is what the test writes. Access is decided by RBAC alone.

    Attributes:
        base_url: Where the API server is, `https://127.0.0.1:<port>`; the same after a new start.
        tokens: The bearer tokens of the users by their names; `ADMIN` is always there.
        authority_file: The certificate authority, PEM.
        tls: For clients: trusts the API server.
        crds_are_there: Whether someone has created the custom resource definitions.
    """

    def __init__(self, users: Mapping[str, Sequence[str]] | None = None, *, watch_cache: bool = True) -> None:
        """Prepare everything and start nothing.

        Args:
            users: More users by name, with their groups.
            watch_cache: Without it a watch is etcd's own, which an etcd compaction ends. With it, the API server remembers
                the events of the last minutes by itself.
        """
        apiserver, etcd = require_kube_apiserver(), require_etcd()
        self._folder = tempfile.TemporaryDirectory(prefix="control-plane-")
        self.folder = Path(self._folder.name)
        self._port, self._etcd_port = unused_port(), unused_port()
        self.base_url = f"https://{_HOST}:{self._port}"
        self.tokens = {name: secrets.token_hex(16) for name in (ADMIN, *(users or {}))}
        self.crds_are_there = False
        self._write_files({**(users or {}), ADMIN: ["system:masters"]})
        self.authority_file = self.folder / "authority.crt"
        self.tls = ssl.create_default_context(cafile=self.authority_file)
        self._etcd = ServerProcess("etcd", [etcd, *self._etcd_flags()], self.folder / "etcd.log")
        self._apiserver = ServerProcess(
            "kube-apiserver", [apiserver, *self._apiserver_flags(watch_cache)], self.folder / "kube-apiserver.log"
        )

    def start(self) -> None:
        """Start both, without waiting; `is_ready` tells when they serve. To be called in the main thread."""
        self._etcd.start()
        self._apiserver.start()  # it waits for etcd by itself

    def start_api_server(self) -> None:
        """Start the API server again, at the same place; its objects are those of before."""
        self._apiserver.start()

    def kill_api_server(self) -> None:
        """End the API server as a crash does."""
        self._apiserver.kill()

    def pause_api_server(self) -> None:
        """The API server falls silent, with its connections open."""
        self._apiserver.pause()

    def resume_api_server(self) -> None:
        """End of the silence."""
        self._apiserver.resume()

    def stop(self) -> None:
        """End both and remove their files."""
        self._apiserver.kill()
        self._etcd.kill()
        self._folder.cleanup()

    def is_ready(self) -> bool:
        """Whether the API server serves; blocks for a moment.

        Raises:
            AssertionError: One of them has ended.
        """
        self._etcd.check_alive()
        self._apiserver.check_alive()
        connection = http.client.HTTPSConnection(_HOST, self._port, timeout=_ASK_S, context=self.tls)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    def compact_etcd(self) -> None:
        """Make etcd forget all but the present state of the objects."""
        # A revision more, with a key that is not Kubernetes', so that the last change of an object is forgotten, too.
        revision = self._ask_etcd("/v3/kv/put", {"key": _encoded("tests/compactions")})["header"]["revision"]
        self._ask_etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def log_tails(self) -> str:
        """What both wrote last, for a failure."""
        return f"{self._etcd.log_tail()}\n{self._apiserver.log_tail()}"

    def write_kubeconfig(self, token: str, *, namespace: str = "default", server: str | None = None) -> Path:
        """A new kubeconfig with a bearer token.

        Args:
            server: Another URL than `base_url`, such as a proxy's on 127.0.0.1 or localhost.
        """
        cluster = {"server": server or self.base_url, "certificate-authority": str(self.authority_file)}
        file = self.folder / f"kubeconfig-{secrets.token_hex(4)}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}],
            "current-context": "tests",
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def _ask_etcd(self, path: str, body: object) -> Any:
        """One call of etcd's JSON gateway, https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/."""
        connection = http.client.HTTPConnection(_HOST, self._etcd_port, timeout=100)
        with contextlib.closing(connection):
            connection.request("POST", path, msgspec.json.encode(body))
            response = connection.getresponse()
            answer = response.read()
        if response.status != 200:
            raise AssertionError(
                f"etcd {path}: expected status 200, found {response.status}: {answer.decode(errors='replace')}"
            )
        return msgspec.json.decode(answer)

    def _write_files(self, groups: Mapping[str, Sequence[str]]) -> None:
        keys = server_keys()
        lines = [f'{token},{name},{name},"{",".join(groups[name])}"\n' for name, token in self.tokens.items()]
        files = {
            "authority.crt": keys.authority,
            "server.crt": keys.certificate,
            "server.key": keys.key,
            "accounts.key": key_pem(new_key()),
            "tokens.csv": "".join(lines).encode(),
        }
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def _etcd_flags(self) -> list[str]:
        here = f"http://{_HOST}:{self._etcd_port}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls=http://{_HOST}:0",
            "--unsafe-no-fsync",  # the machine will not lose power and then go on with the test
        ]

    def _apiserver_flags(self, watch_cache: bool) -> list[str]:
        return [
            f"--etcd-servers=http://{_HOST}:{self._etcd_port}",
            f"--bind-address={_HOST}",
            f"--advertise-address={_HOST}",
            "--endpoint-reconciler-type=none",  # would refuse the loopback address
            f"--secure-port={self._port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # It waits for a service account that a controller would have made.
            "--disable-admission-plugins=ServiceAccount",
            f"--watch-cache={str(watch_cache).lower()}",
            "--shutdown-delay-duration=0s",
        ]
