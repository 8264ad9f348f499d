"""A Kubernetes API server on a loopback port, with a switch for everything that can go wrong.

It lists (pages, selectors), watches (resource versions, bookmarks, time limits) and writes (optimistic locking) as the real
one does; authentication is one token, and there is no validation.
"""

import asyncio
import base64
import json
import re
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.fakes.http1 import Body, Head, head_bytes, read_head
from tests.fakes.kube_api_answers import PATH, REASONS, AnswerError, Answers, KubeRequest, Refusal, verb_of
from tests.fakes.kube_api_store import Change, KubeJson, KubeStore, selector
from tests.fakes.kube_api_watch import End, Watch, line_of, status_object
from tests.kubernetes.certificates import ServerKeys, server_keys

POOLS_V1 = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
POOLS_V1ALPHA2 = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferencepools"
_WATCH_DEFAULT_S = 1800.0


def pods_path(namespace: str = "default") -> str:
    """Where pods are."""
    return f"/api/v1/namespaces/{namespace}/pods"


class FakeKubeApi:
    """Attributes:
    requests: All that came, in order, refused ones included.
    token: What `Authorization: Bearer` must be; None takes everybody.
    absent: Last parts of paths of kinds that are not installed (404).
    silent: New watches get the head of an answer and then nothing, for ever.
    gone_as_event: 410 for a watch comes as an ERROR event, not as the status.
    bookmarks: Whether a watch gets a bookmark at its time limit.
    list_delay_s: Every page of a list comes so much later.
    refusals: What is answered instead of the truth; the first one for a verb counts.
    """

    def __init__(self, keys: ServerKeys | None = None) -> None:
        self._answers = Answers(self._tell)
        self.requests: list[KubeRequest] = []
        self.token: str | None = None
        self.absent: set[str] = set()
        self.silent = False
        self.gone_as_event = False
        self.bookmarks = True
        self.list_delay_s = 0.0
        self.refusals: list[Refusal] = []
        self.port = 0
        self.keys = keys
        self._held_lists = ""
        self._lists_go = asyncio.Event()
        self._lists_go.set()
        self._watches: list[Watch] = []
        self._listening: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter | None] = {}

    @property
    def store(self) -> KubeStore:
        """The objects; write them by the methods here, so that watches are told."""
        return self._answers.store

    # ── its life ──

    @property
    def url(self) -> str:
        return f"http{'s' if self.keys else ''}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; again on the port of the first time."""
        listening = socket.create_server(("127.0.0.1", self.port), backlog=100)
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self._listening = listening
        # Not asyncio's server, nor `sock_accept`: what they accepted a moment before they are closed stays open for ever.
        asyncio.get_running_loop().add_reader(listening, self._accept, listening, self._tls())

    async def stop(self) -> None:
        """Refuse connections from now on, and cut all that there are."""
        if self._listening is None:
            return
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        self._listening = None
        await asyncio.sleep(0)  # every connection's task has begun
        for task in list(self._connections):
            if (writer := self._connections.get(task)) is not None:
                writer.transport.abort()
            await _cancel(task)

    async def restart(self, keys: ServerKeys | None = None) -> None:
        """Stop and start; with other keys if they are given."""
        await self.stop()
        self.keys = keys or self.keys
        await self.start()

    def kubeconfig(self, folder: Path, *, namespace: str = "default", token_file: Path | None = None) -> Path:
        """A kubeconfig file that leads here."""
        cluster: KubeJson = {"server": self.url}
        if self.keys is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.keys.authority).decode()
        user: KubeJson = {"tokenFile": str(token_file)} if token_file else {"token": self.token} if self.token else {}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}],
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "fake", "user": user}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(document))
        return path

    # ── objects ──

    def put(self, collection: str, new: Mapping[str, Any]) -> KubeJson:
        """Create or replace an object; a replaced one keeps its uid."""
        return self._answers.put(collection, new)

    def delete(self, collection: str, name: str) -> None:
        """Remove an object."""
        self._answers.delete(collection, name)

    def put_pod(self, new: Mapping[str, Any]) -> KubeJson:
        return self.put(pods_path(new["metadata"]["namespace"]), new)

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        self.delete(pods_path(namespace), name)

    def put_inference_pool(self, new: Mapping[str, Any]) -> KubeJson:
        return self.put(self._pools_of(new), new)

    def delete_inference_pool(self, found: Mapping[str, Any]) -> None:
        self.delete(self._pools_of(found), found["metadata"]["name"])

    @staticmethod
    def _pools_of(found: Mapping[str, Any]) -> str:
        path = POOLS_V1 if found["apiVersion"].endswith("/v1") else POOLS_V1ALPHA2
        return path.format(found["metadata"]["namespace"])

    # ── what goes wrong ──

    def refuse(self, verb: str, status: int, **rest: Any) -> None:
        """Answer the next request of that verb so; see `Refusal`. `*` is any verb."""
        self.refusals.append(Refusal(verb, status, **rest))

    def cut_watches(self, *, within_a_line: bool = False) -> None:
        """Cut the connection of every watch."""
        for watch in self._watches:
            if within_a_line:
                watch.send(b'{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"na')
            watch.send(End.CUT)

    def silence_watches(self) -> None:
        """Leave every watch half open: nothing is sent on it any more, not even its end."""
        for watch in self._watches:
            watch.silent = True

    def end_watches(self) -> None:
        """End every watch properly."""
        for watch in self._watches:
            watch.send(End.PROPER)

    def send_line(self, line: bytes) -> None:
        """Send bytes to every watch."""
        for watch in self._watches:
            watch.send(line)

    def send_event(self, event_type: str, found: Any) -> None:
        """Send an event to every watch, true or not."""
        self.send_line(line_of(event_type, found))

    def send_error(self, code: int, message: str = "an error of the test") -> None:
        """Send an ERROR event to every watch, and end it."""
        self.send_event("ERROR", status_object(code, REASONS.get(code, ""), message))
        self.end_watches()

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watch."""
        self.send_line(self._bookmark())

    def compact(self) -> None:
        """Forget the history: every resource version from before is too old."""
        self.store.compact()

    async def restore(self, backup: KubeStore) -> None:
        """Go back in time, as an etcd that was restored from a backup; resource versions come again."""
        await self.stop()
        self._answers.store = backup.backup()
        await self.start()

    def hold_lists(self, collection: str = "") -> None:
        """Answer no list of that collection, or of any, until `release_lists`."""
        self._held_lists = collection
        self._lists_go.clear()

    def release_lists(self) -> None:
        self._lists_go.set()

    # ── what happened ──

    @property
    def connections(self) -> list[asyncio.StreamWriter]:
        """The connections that are open."""
        return [writer for writer in self._connections.values() if writer is not None]

    @property
    def watches(self) -> int:
        """How many watches run."""
        return len(self._watches)

    def count(self, verb: str) -> int:
        """How many requests of that verb came."""
        return Counter(request.verb for request in self.requests)[verb]

    async def watched(self, watches: int = 1, within_s: float = 60.0) -> None:
        """Wait until at least so many watches run."""
        async with asyncio.timeout(within_s):
            while len(self._watches) < watches:
                await asyncio.sleep(0.002)

    # ── one connection ──

    def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = listening.accept()
            connection.setblocking(False)
            task = asyncio.create_task(self._connect(connection, tls))
            self._connections[task] = None
            task.add_done_callback(self._connections.pop)

    async def _connect(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 20)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
        except OSError:  # no handshake; TLS errors are OSErrors
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while (head := await read_head(reader)) is not None:
                body = b"".join([piece async for piece in Body(head, reader).pieces()])
                if not await self._answer(head, body, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            transport.abort()

    async def _answer(self, head: Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, target, _ = head.start.split(" ")
        url = urlsplit(target)
        match = PATH.fullmatch(url.path)
        query = dict(parse_qsl(url.query))
        verb = verb_of(method, query, named=match is not None and match["name"] is not None)
        self.requests.append(KubeRequest(verb, url.path, query, dict(head.headers)))
        refusal = self._refusal_for(verb)
        try:
            self._authenticate(head)
            if refusal is not None and refusal.cut_after_bytes is None:
                return await _send(writer, refusal.status, refusal.answer(), refusal.headers)
            collection, name = self._known(match)
            if verb == "watch":
                return await self._watch(collection, query, reader, writer)
            if verb == "list":
                if self._held_lists in ("", collection):
                    await self._lists_go.wait()
                await asyncio.sleep(self.list_delay_s)
                status, answer = 200, self._answers.list(collection, query)
            else:
                status, answer = self._answers.change(verb, collection, name, body)
        except AnswerError as error:
            return await _send(writer, error.code, error.body, {})
        return await _send(writer, status, answer, {}, cut_after_bytes=refusal.cut_after_bytes if refusal else None)

    def _refusal_for(self, verb: str) -> Refusal | None:
        found = next((refusal for refusal in self.refusals if refusal.verb in (verb, "*")), None)
        if found is not None and found.after > 0:
            found.after -= 1
            return None
        if found is not None and found.times is not None:
            found.times -= 1
            if found.times == 0:
                self.refusals.remove(found)
        return found

    def _authenticate(self, head: Head) -> None:
        if self.token is not None and head.get("authorization") != f"Bearer {self.token}":
            raise AnswerError(401, "Unauthorized")

    def _known(self, match: re.Match[str] | None) -> tuple[str, str]:
        if match is None or match["collection"].rpartition("/")[2] in self.absent:
            raise AnswerError(404, "the server could not find the requested resource")
        return match["collection"], match["name"] or ""

    def _tell(self, step: Change) -> None:
        for watch in self._watches:
            watch.tell(step)

    async def _watch(
        self, collection: str, query: Mapping[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        version = int(query.get("resourceVersion") or 0)
        if version < self.store.compacted:
            message = f"too old resource version: {version} ({self.store.compacted})"
            if not self.gone_as_event:
                raise AnswerError(410, message)
        matches = selector(query.get("labelSelector"), query.get("fieldSelector"))
        watch = Watch(collection, matches, version, silent=self.silent)
        if version < self.store.compacted:
            watch.send(line_of("ERROR", status_object(410, "Expired", message)))
            watch.send(End.PROPER)
        for step in self.store.since(version, collection):
            watch.tell(step)
        self._watches.append(watch)
        serving = asyncio.create_task(
            watch.serve(writer, float(query.get("timeoutSeconds") or _WATCH_DEFAULT_S), self._bookmark)
        )
        leaving = asyncio.create_task(reader.read(1))  # nothing comes but the end
        try:
            await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return serving.result() if serving.done() else False
        finally:
            self._watches.remove(watch)
            await _cancel(serving)
            await _cancel(leaving)

    def _bookmark(self) -> bytes:
        if not self.bookmarks:
            return b""
        return line_of("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.store.version)}})

    def _tls(self) -> ssl.SSLContext | None:
        if self.keys is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(self.keys.certificate + self.keys.key)
            pem.flush()
            context.load_cert_chain(pem.name)
        return context


@asynccontextmanager
async def kube_api(*, tls: bool = False) -> AsyncIterator[FakeKubeApi]:
    """A fake API server for the length of the block."""
    api = FakeKubeApi(server_keys() if tls else None)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, OSError):
        await task


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str], *, cut_after_bytes: int | None = None
) -> bool:
    fields = [("content-type", "application/json"), ("content-length", str(len(body))), *headers.items()]
    writer.write(head_bytes(f"HTTP/1.1 {status} {REASONS.get(status, 'OK')}", fields) + body[:cut_after_bytes])
    await writer.drain()
    return cut_after_bytes is None
