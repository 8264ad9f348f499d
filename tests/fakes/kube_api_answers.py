"""Requests to a fake API server and its answers, as far as they come whole."""

import base64
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kube_api_store import Change, KubeJson, KubeStore, selector
from tests.fakes.kube_api_watch import status_object

PATH = re.compile(r"(?P<collection>/(?:api/v1|apis/[^/]+/[^/]+)/namespaces/[^/]+/[^/]+)(?:/(?P<name>[^/]+))?")
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True, slots=True)
class KubeRequest:
    """A request that came; `verb` is `list`, `watch`, `get`, `create`, `update`, `patch` or `delete`."""

    verb: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(slots=True)
class Refusal:
    """An answer that is given instead of the true one.

    Attributes:
        times: How often; None for as long as it stands there.
        after: So many requests of the verb are answered truly before.
        body: Sent as it is; by default a Status object.
        cut_after_bytes: The true answer is begun, and the connection cut after so many bytes of its body.
    """

    verb: str
    status: int
    times: int | None = 1
    after: int = 0
    message: str = "refused by the test"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut_after_bytes: int | None = None

    def answer(self) -> bytes:
        """The body of the answer."""
        if self.body is not None:
            return self.body
        return json.dumps(status_object(self.status, REASONS.get(self.status, ""), self.message)).encode()


class AnswerError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.body = json.dumps(status_object(code, reason or REASONS.get(code, ""), message)).encode()


class Answers:
    """What the verbs do with the objects.

    Args:
        on_change: Is told every change.
    """

    def __init__(self, on_change: Callable[[Change], None]) -> None:
        self.store = KubeStore()
        self._on_change = on_change
        self._numbers = itertools.count()
        self._lists: dict[int, tuple[int, list[KubeJson]]] = {}

    def put(self, collection: str, new: Mapping[str, Any]) -> KubeJson:
        """Create or replace an object; a replaced one keeps its uid."""
        step = self.store.put(collection, new)
        self._on_change(step)
        assert step.after is not None
        return step.after

    def delete(self, collection: str, name: str) -> None:
        """Remove an object."""
        self._on_change(self.store.delete(collection, name))

    def list(self, collection: str, query: Mapping[str, str]) -> bytes:
        """A page; all pages of one list are of one moment."""
        if token := query.get("continue"):
            number, first = json.loads(base64.urlsafe_b64decode(token))
            version, matching = self._lists[number]
            if version < self.store.compacted:
                raise AnswerError(410, "The provided continue parameter is too old to display a consistent list result.")
        else:
            matches = selector(query.get("labelSelector"), query.get("fieldSelector"))
            number, first, version, matching = next(self._numbers), 0, self.store.version, self.store.list(collection, matches)
        page = matching[first:][: int(query.get("limit", "0")) or None]
        meta: KubeJson = {"resourceVersion": str(version)}
        if left := len(matching) - first - len(page):
            self._lists[number] = version, matching
            meta["continue"] = base64.urlsafe_b64encode(json.dumps([number, first + len(page)]).encode()).decode()
            meta["remainingItemCount"] = left
        return json.dumps({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": page}).encode()

    def change(self, verb: str, collection: str, name: str, body: bytes) -> tuple[int, bytes]:
        """Status and answer of a request for one object."""
        if verb == "create":
            new = json.loads(body)
            if (collection, new["metadata"]["name"]) in self.store.objects:
                raise AnswerError(409, f'"{new["metadata"]["name"]}" already exists', "AlreadyExists")
            return 201, json.dumps(self.put(collection, new)).encode()
        found = self.store.objects.get((collection, name))
        if found is None:
            raise AnswerError(404, f'"{name}" not found')
        if verb == "update":
            new = json.loads(body)
            _check_version(new, found)
            found = self.put(collection, new)
        elif verb == "patch":
            found = self.put(collection, _merged(found, json.loads(body)))
        elif verb == "delete":
            self.delete(collection, name)
        return 200, json.dumps(found).encode()


def verb_of(method: str, query: Mapping[str, str], *, named: bool) -> str:
    if method == "GET":
        if query.get("watch", "") in ("1", "true"):
            return "watch"
        return "get" if named else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower())


def _check_version(new: KubeJson, found: KubeJson) -> None:
    version = new["metadata"].get("resourceVersion")
    if version is not None and version != found["metadata"]["resourceVersion"]:
        raise AnswerError(409, "the object has been modified; please apply your changes to the latest version and try again")


def _merged(found: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
