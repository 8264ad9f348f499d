"""A client of the Kubernetes API, as plain as can be, so that the tests do not see through the eyes of what they test."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from tests.kubernetes.manifest import Manifest

_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
FIELD_MANAGER = "tests"


class ApiStatusError(AssertionError):
    """The API server refused: `status` is the HTTP status, `reason` its word for it, such as `Forbidden`."""

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{request}: expected status 2xx, found {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


def path_of(version: str, plural: str, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
    """The path of a resource: `path_of("v1", "pods", "a", "b", "status")` is `/api/v1/namespaces/a/pods/b/status`.

    Args:
        version: With the group in front where there is one: `v1`, `inference.networking.k8s.io/v1`.
    """
    words = ["/apis" if "/" in version else "/api", version]
    if namespace is not None:
        words += ["namespaces", namespace]
    return "/".join(word for word in (*words, plural, name or "", subresource) if word)


class ApiClient:
    """One user of an API server. All methods but `stream` raise an ApiStatusError when the answer is no success.

    Paths are those of the API (`path_of` makes them); parameters are those of the query.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: str) -> None:
        """`session` trusts the API server, and is closed by its owner."""
        self._session = session
        self._base_url = base_url
        self._token = token
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    async def get(self, path: str, **parameters: str) -> Manifest:
        """One object, or a list of them."""
        return await self._request("GET", path, parameters)

    async def list(self, path: str, **parameters: str) -> list[Manifest]:
        """The objects of a list, for example with `labelSelector=`."""
        items: list[Manifest] = (await self.get(path, **parameters))["items"]
        return items

    async def create(self, path: str, body: Manifest, **parameters: str) -> Manifest:
        """POST to the path of the collection; the object as it is now."""
        return await self._request("POST", path, parameters, body)

    async def replace(self, path: str, body: Manifest, **parameters: str) -> Manifest:
        """PUT to the path of the object."""
        return await self._request("PUT", path, parameters, body)

    async def patch(self, path: str, body: object, *, kind: str = "merge", **parameters: str) -> Manifest:
        """PATCH of the object; `kind` is `merge`, `json` or `strategic`."""
        return await self._request("PATCH", path, parameters, body, _PATCHES[kind])

    async def merge_unread(self, path: str, body: object) -> None:
        """Merge into an object without a look at the answer, which may be nested deeper than this process reads."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/merge-patch+json"}
        async with self._session.patch(self._base_url + path, headers=headers, data=msgspec.json.encode(body)) as response:
            await self._check(response, "PATCH", path)

    async def delete(self, path: str, *, grace_s: int | None = None, **parameters: str) -> Manifest:
        """DELETE of the object; `grace_s` is its grace period in seconds, None the object's own."""
        body = None if grace_s is None else {"gracePeriodSeconds": grace_s}
        return await self._request("DELETE", path, parameters, body)

    async def apply(self, manifest: Manifest, *, namespace: str = "default", dry_run: bool = False) -> Manifest:
        """Server-side apply; unknown and double fields are errors.

        Args:
            namespace: Where the object goes unless it says so itself; no matter for what belongs to no namespace.
            dry_run: The API server does everything but keep it.
        """
        plural, namespaced = await self._resource(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        path = path_of(
            manifest["apiVersion"], plural, metadata.get("namespace", namespace) if namespaced else None, metadata["name"]
        )
        parameters = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            parameters["dryRun"] = "All"
        return await self._request("PATCH", path, parameters, manifest, "application/apply-patch+yaml")

    async def can(self, verb: str, group: str, resource: str, namespace: str, *, name: str = "", subresource: str = "") -> bool:
        """Whether this user may do that (SelfSubjectAccessReview)."""
        attributes = {
            "verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name, "subresource": subresource
        }  # fmt: skip
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        allowed: bool = answer["status"]["allowed"]
        return allowed

    async def watch(self, path: str, resource_version: str, **parameters: str) -> AsyncGenerator[Manifest, None]:
        """The events of a watch, until it ends; close it (`contextlib.aclosing`) when you have seen enough."""
        async with self.stream(path, watch="true", resourceVersion=resource_version, **parameters) as response:
            await self._check(response, "GET", path)
            async for line in response.content:
                yield msgspec.json.decode(line)

    @asynccontextmanager
    async def stream(self, path: str, **parameters: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET as it comes, whatever its status."""
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._base_url + path, params=parameters, headers=headers, timeout=timeout) as response:
            yield response

    async def _request(
        self, method: str, path: str, parameters: Mapping[str, str], body: object = None, content_type: str = "application/json"
    ) -> Manifest:
        headers = {"Authorization": f"Bearer {self._token}"}
        content = None
        if body is not None:
            headers["Content-Type"] = content_type
            content = msgspec.json.encode(body)
        async with self._session.request(
            method, self._base_url + path, params=parameters, headers=headers, data=content
        ) as response:
            await self._check(response, method, path)
            answer: Manifest = msgspec.json.decode(await response.read())
            return answer

    async def _check(self, response: aiohttp.ClientResponse, method: str, path: str) -> None:
        if response.ok:
            return
        text = await response.text()
        try:
            status: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            status = {}
        raise ApiStatusError(f"{method} {path}", response.status, status.get("reason", ""), status.get("message", text))

    async def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        """The plural of a kind, and whether it belongs to a namespace."""
        if (version, kind) not in self._kinds:
            for resource in (await self.get(path_of(version, "")))["resources"]:
                if "/" not in resource["name"]:
                    self._kinds[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        if (version, kind) not in self._kinds:
            raise AssertionError(f"{version} {kind}: expected a resource of the API server, found none")
        return self._kinds[version, kind]
