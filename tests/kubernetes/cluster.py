"""A real API server for one test, with a namespace of its own; the test plays the kubelet and the user."""

import asyncio
import secrets
import socket
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.flows.epp_process import wait_until
from tests.kubernetes.api_client import ApiClient, ApiStatusError, path_of
from tests.kubernetes.control_plane import ADMIN, ControlPlane
from tests.kubernetes.manifest import Manifest
from tests.kubernetes.pods import Kubelet
from tests.kubernetes.programs import crds

START_S = 300.0
"""How long a control plane may take to serve on a busy machine; it takes about 5 s on an idle one."""
_REQUEST_S = 100.0
_CRDS = "apiextensions.k8s.io/v1"
POOL_GROUPS = {"v1": "inference.networking.k8s.io", "v1alpha2": "inference.networking.x-k8s.io"}
"""The API group of an InferencePool by its version."""


class RealCluster(ApiClient):
    """`async with RealCluster() as cluster: await cluster.pods.create("a", "127.0.1.1")`.

    As an ApiClient it is the administrator. Without `control_plane` it starts one for itself, and ends it.

    Attributes:
        namespace: A new one, in which everything happens unless a parameter says otherwise.
        pods: The kubelet of that namespace.
        control_plane: The processes behind it.
    """

    namespace: str
    pods: Kubelet

    def __init__(
        self,
        control_plane: ControlPlane | None = None,
        *,
        users: Sequence[str] = (),
        watch_cache: bool = True,
        with_crds: bool = True,
    ) -> None:
        """`users` (who may do nothing) and `watch_cache` are for a control plane of its own, as ControlPlane says.

        Without `with_crds` the custom resource definitions come with `create_crds`.
        """
        self._own = control_plane is None
        self._with_crds = with_crds
        self.control_plane = control_plane or ControlPlane({user: [] for user in users}, watch_cache=watch_cache)
        self._sessions: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        try:
            if self._own:
                self.control_plane.start()
                await self._until_ready()
            connector = aiohttp.TCPConnector(ssl=self.control_plane.tls, limit=0, socket_factory=self._new_socket)
            self._sessions = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_REQUEST_S))
            super().__init__(self._sessions, self.base_url, self.token())
            if self._with_crds:
                await self.create_crds()
            self.namespace = await self.create_namespace()
            self.pods = Kubelet(self, self.namespace)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.control_plane.log_tails())
        if self._sessions is not None:
            await self._sessions.close()
        if self._own:
            self.control_plane.stop()
        # TLS says goodbye after the session is closed, and asyncio complains of what the end of its loop cuts off.
        await wait_until(
            lambda: all(open_one.fileno() == -1 for open_one in self._sockets), "all connections to be closed", _REQUEST_S
        )

    @property
    def base_url(self) -> str:
        """Where the API server is: `https://127.0.0.1:<port>`."""
        return self.control_plane.base_url

    def token(self, user: str = ADMIN) -> str:
        """The bearer token of a user."""
        return self.control_plane.tokens[user]

    def as_user(self, user: str) -> ApiClient:
        """What the cluster is to a user."""
        return self.as_bearer(self.token(user))

    def as_bearer(self, token: str) -> ApiClient:
        """What the cluster is to whoever has that token."""
        assert self._sessions is not None
        return ApiClient(self._sessions, self.base_url, token)

    def kubeconfig(self, user: str = ADMIN, *, token: str | None = None, server: str | None = None) -> Path:
        """A new kubeconfig of a user, or of a token; its namespace is this one.

        Args:
            server: Another URL than `base_url`, such as a proxy's on 127.0.0.1 or localhost.
        """
        return self.control_plane.write_kubeconfig(token or self.token(user), namespace=self.namespace, server=server)

    async def service_account_token(self, name: str, *, namespace: str | None = None) -> str:
        """A token of a service account, as a Pod gets it; the account is created when it is not there."""
        where = namespace or self.namespace
        accounts = path_of("v1", "serviceaccounts", where)
        try:
            await self.create(accounts, {"metadata": {"name": name}})
        except ApiStatusError as error:
            if error.reason != "AlreadyExists":
                raise
        answer = await self.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 3_600}})
        token: str = answer["status"]["token"]
        return token

    async def create_namespace(self, name: str | None = None) -> str:
        """A namespace, by default with a new name; nothing removes it but the end of the control plane."""
        chosen = name or f"test-{secrets.token_hex(4)}"
        await self.create("/api/v1/namespaces", {"metadata": {"name": chosen}})
        return chosen

    async def create_crds(self) -> None:
        """InferencePool and its kin become known, unless they are; ends when the API server serves them."""
        if self.control_plane.crds_are_there:
            return
        definitions = crds()
        for definition in definitions:
            await self.create(path_of(_CRDS, "customresourcedefinitions"), definition)
        for definition in definitions:
            await wait_until(partial(self._is_served, definition), definition["metadata"]["name"], _REQUEST_S)
        self.control_plane.crds_are_there = True

    async def create_pool(
        self,
        name: str,
        selector: Mapping[str, str],
        ports: Sequence[int],
        *,
        version: str = "v1",
        app_protocol: str | None = None,
        picker: str = "epp",
    ) -> Manifest:
        """An InferencePool.

        Args:
            ports: Up to 8; with version `v1alpha2` it is one.
            version: `v1` or `v1alpha2`, which are of different groups.
            picker: The name of the endpoint picker's Service.
        """
        body = {
            "apiVersion": f"{POOL_GROUPS[version]}/{version}",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": pool_spec(selector, ports, version=version, app_protocol=app_protocol, picker=picker),
        }
        return await self.create(self.pool_path(version=version), body)

    async def update_pool(
        self, name: str, *, selector: Mapping[str, str] | None = None, ports: Sequence[int] | None = None, version: str = "v1"
    ) -> Manifest:
        """Change the selector or the ports of an InferencePool; the rest stays."""
        pool = await self.get(self.pool_path(name, version=version))
        changed: dict[str, Any] = pool_spec(selector or {}, ports or [1], version=version)
        if selector is not None:
            pool["spec"]["selector"] = changed["selector"]
        if ports is not None:
            key = "targetPorts" if version == "v1" else "targetPortNumber"
            pool["spec"][key] = changed[key]
        return await self.replace(self.pool_path(name, version=version), pool)

    async def delete_pool(self, name: str, *, version: str = "v1") -> None:
        """Remove an InferencePool."""
        await self.delete(self.pool_path(name, version=version))

    def pool_path(self, name: str | None = None, *, version: str = "v1") -> str:
        """The path of an InferencePool, or of all."""
        return path_of(f"{POOL_GROUPS[version]}/{version}", "inferencepools", self.namespace, name)

    def stop_api_server(self) -> None:
        """The API server crashes; its etcd stays. Only for a control plane of your own."""
        assert self._own
        self.control_plane.kill_api_server()

    async def start_api_server(self) -> None:
        """The API server starts again at the same place; ends when it serves."""
        self.control_plane.start_api_server()
        await self._until_ready()

    def pause(self) -> None:
        """The API server falls silent, with its connections open. Only for a control plane of your own."""
        assert self._own
        self.control_plane.pause_api_server()

    def resume(self) -> None:
        """End of the silence."""
        self.control_plane.resume_api_server()

    async def compact_etcd(self) -> None:
        """etcd forgets all but the present; ends every watch from before only where there is no watch cache."""
        await asyncio.to_thread(self.control_plane.compact_etcd)

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        new = socket.socket(*address[:3])
        self._sockets.add(new)
        return new

    async def _until_ready(self) -> None:
        await wait_until(lambda: asyncio.to_thread(self.control_plane.is_ready), "/readyz of kube-apiserver", START_S)

    async def _is_served(self, definition: Manifest) -> bool:
        spec = definition["spec"]
        try:
            await self.get(path_of(f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]), limit="1")
        except ApiStatusError as error:
            if error.status == 404:
                return False
            raise
        return True


def pool_spec(
    selector: Mapping[str, str],
    ports: Sequence[int],
    *,
    version: str = "v1",
    app_protocol: str | None = None,
    picker: str = "epp",
) -> dict[str, Any]:
    """The specification of an InferencePool, whose shape differs between its versions."""
    if version == "v1":
        spec: dict[str, Any] = {
            "selector": {"matchLabels": dict(selector)},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": picker, "port": {"number": 9002}},
        }
        return spec if app_protocol is None else {**spec, "appProtocol": app_protocol}
    (port,) = ports
    return {"selector": dict(selector), "targetPortNumber": port, "extensionRef": {"name": picker, "portNumber": 9002}}
