"""Requests to an API server, and what happens to the credentials meanwhile."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from epp.discovery.kubernetes import access, api_server
from epp.discovery.kubernetes.access import find_access
from epp.discovery.kubernetes.api_server import (
    ApiError,
    ApiServer,
    BusyError,
    ConflictError,
    CredentialsError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    UnauthorizedError,
    UnexpectedAnswerError,
    UnreachableError,
)
from tests.discovery.fakes import eventually
from tests.fakes.kube_api import FakeKubeApi, kube_api, pods_path
from tests.fakes.kube_objects import pod
from tests.kubernetes.certificates import ServerKeys, server_keys

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.fixture
async def server(api: FakeKubeApi, tmp_path: Path) -> AsyncIterator[ApiServer]:
    found = ApiServer(find_access(str(api.kubeconfig(tmp_path, namespace="ns")), {}, version="1.2.3"))
    yield found
    await found.aclose()


def lease(holder: str, version: str | None = None) -> dict[str, object]:
    metadata = {"name": "l", "namespace": "default"} | ({} if version is None else {"resourceVersion": version})
    return {"metadata": metadata, "spec": {"holderIdentity": holder}}


def in_cluster(api: FakeKubeApi, folder: Path, token: str, keys: ServerKeys) -> ApiServer:
    """Credentials of a service account, in a folder as Kubernetes mounts it: files are links into `..data`, itself a link."""
    publish(folder, "v1", token, keys)
    for name in ("token", "ca.crt", "namespace"):
        (folder / name).symlink_to(Path("..data") / name)
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
    return ApiServer(find_access(None, environ, service_account=folder, home=folder))


def publish(folder: Path, version: str, token: str, keys: ServerKeys) -> None:
    """Write new files and turn the link, as the kubelet does."""
    (folder / version).mkdir()
    for name, content in (("token", token.encode()), ("ca.crt", keys.authority), ("namespace", b"ns\n")):
        (folder / version / name).write_bytes(content)
    (folder / "..next").symlink_to(version)
    (folder / "..next").rename(folder / "..data")


async def test_objects_are_created_read_replaced_and_patched(api: FakeKubeApi, server: ApiServer) -> None:
    await server.create(LEASES, lease("a"))
    version = api.store.objects[LEASES, "l"]["metadata"]["resourceVersion"]
    await server.replace(f"{LEASES}/l", lease("b", version))
    await server.patch(f"{LEASES}/l", {"spec": {"note": "n"}})
    assert b'"holderIdentity": "b", "note": "n"' in await server.get(f"{LEASES}/l")
    assert [request.headers.get("content-type") for request in api.requests] == [
        "application/json",
        "application/json",
        "application/merge-patch+json",
        None,
    ]


async def test_what_was_changed_by_others_or_is_there_already_is_a_conflict(server: ApiServer) -> None:
    await server.create(LEASES, lease("a"))
    with pytest.raises(ConflictError, match="AlreadyExists"):
        await server.create(LEASES, lease("b"))
    with pytest.raises(ConflictError, match="409 Conflict"):
        await server.replace(f"{LEASES}/l", lease("b", "1"))


async def test_a_request_says_who_asks_and_takes_no_compressed_answers(api: FakeKubeApi, server: ApiServer) -> None:
    await server.get(pods_path(), {"limit": 5, "labelSelector": "a in (b,c),d!=e"})
    (request,) = api.requests
    assert request.headers["user-agent"] == "inference-epp/1.2.3"
    assert request.headers["accept-encoding"] == "identity"
    assert request.query == {"limit": "5", "labelSelector": "a in (b,c),d!=e"}
    assert server.namespace == "ns"
    assert server.server == api.url


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (410, GoneError),
        (500, BusyError),
        (302, UnexpectedAnswerError),
    ],
)
async def test_errors_are_classed(api: FakeKubeApi, server: ApiServer, status: int, kind: type[Exception]) -> None:
    api.refuse("list", status, message="why", times=None)
    api.refuse("watch", status, message="why", times=None)
    with pytest.raises(kind, match="why"):
        await server.get(pods_path())
    with pytest.raises(kind, match="why"):
        await anext(server.watch(pods_path(), {}))


async def test_a_server_that_asks_for_a_pause_is_heard(api: FakeKubeApi, server: ApiServer) -> None:
    api.refuse("list", 503, headers={"retry-after": "3"})
    with pytest.raises(BusyError) as caught:
        await server.get(pods_path())
    assert caught.value.retry_after_s == 3.0


async def test_a_refused_connection_is_unreachable_and_works_when_the_server_is_back(
    api: FakeKubeApi, server: ApiServer
) -> None:
    await server.get(pods_path())
    await api.stop()
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await server.get(pods_path())
    await api.start()
    await server.get(pods_path())


async def test_an_answer_that_is_cut_is_unreachable(api: FakeKubeApi, server: ApiServer) -> None:
    api.put_pod(pod("a"))
    api.refuse("list", 200, cut_after_bytes=40)
    with pytest.raises(UnreachableError):
        await server.get(pods_path())


async def test_a_request_does_not_wait_for_ever(api: FakeKubeApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "REQUEST_MAX_S", 0.05)
    api.hold_lists()
    with pytest.raises(UnreachableError, match=r"no answer within 0.05 s"):
        await server.get(pods_path())


async def test_after_a_request_without_answer_no_old_connection_is_used(api: FakeKubeApi, server: ApiServer) -> None:
    await server.get(pods_path())
    (before,) = api.connections
    api.hold_lists()
    unanswered = asyncio.create_task(server.get(pods_path()))
    await eventually(lambda: api.count("list") == 2)
    unanswered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unanswered
    api.release_lists()
    await server.get(pods_path())
    await eventually(lambda: before not in api.connections)


async def test_a_watch_brings_bytes_as_they_come_and_ends_properly(api: FakeKubeApi, server: ApiServer) -> None:
    chunks: list[bytes] = []

    async def read() -> None:
        chunks.extend([chunk async for chunk in server.watch(pods_path(), {"resourceVersion": api.store.version})])

    reading = asyncio.create_task(read())
    await api.watched()
    api.put_pod(pod("a"))
    api.end_watches()
    await reading
    assert b"".join(chunks).startswith(b'{"type": "ADDED"')


async def test_a_watch_that_is_cut_is_unreachable(api: FakeKubeApi, server: ApiServer) -> None:
    reading = asyncio.ensure_future(anext(server.watch(pods_path(), {"resourceVersion": api.store.version})))
    await api.watched()
    api.cut_watches(within_a_line=False)
    with pytest.raises(UnreachableError):
        await reading


async def test_a_watch_that_is_left_is_closed(api: FakeKubeApi, server: ApiServer) -> None:
    api.put_pod(pod("a"))
    async with aclosing(server.watch(pods_path(), {"resourceVersion": 0})) as chunks:
        await anext(chunks)
        assert api.watches == 1
    await eventually(lambda: api.watches == 0)


async def test_a_token_that_was_replaced_is_read_again_before_the_next_request(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        assert api.keys is not None
        server = in_cluster(api, tmp_path, "one", api.keys)
        api.token = "one"
        await server.get(pods_path())
        publish(tmp_path, "v2", "two", api.keys)
        api.token = "two"
        await server.get(pods_path())
        assert [request.headers["authorization"] for request in api.requests] == ["Bearer one", "Bearer two"]
        await server.aclose()


async def test_a_401_leads_to_one_more_try_with_the_token_of_the_file(tmp_path: Path) -> None:
    async with kube_api() as api:
        token = tmp_path / "token"
        token.write_text("one")
        server = ApiServer(find_access(str(api.kubeconfig(tmp_path, token_file=token)), {}))
        api.token = "one"
        await server.get(pods_path())
        api.token = "two"
        with pytest.raises(UnauthorizedError):
            await server.get(pods_path())
        assert api.count("list") == 3
        token.write_text("two\n")
        await server.get(pods_path())
        assert api.requests[-1].headers["authorization"] == "Bearer two"
        await server.aclose()


async def test_a_token_file_that_is_missing_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with kube_api() as api:
        token = tmp_path / "token"
        token.write_text("one")
        server = ApiServer(find_access(str(api.kubeconfig(tmp_path, token_file=token)), {}))
        token.unlink()
        with pytest.raises(CredentialsError, match="token"):
            await server.get(pods_path())
        token.write_text("one")
        await server.get(pods_path())
        await server.aclose()


async def test_a_server_with_another_authority_is_not_trusted_until_the_file_says_so(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        assert api.keys is not None
        server = in_cluster(api, tmp_path, "t", api.keys)
        await server.get(pods_path())
        keys = server_keys()
        await api.restart(keys)
        with suppress(UnreachableError):  # it depends on timing whether the old connection is known to be dead
            await server.get(pods_path())
        for _ in range(2):
            with pytest.raises(UnreachableError, match=r"(?i)certificate"):
                await server.get(pods_path())
        publish(tmp_path, "v2", "t", keys)
        await server.get(pods_path())
        await server.aclose()


async def test_a_running_watch_outlives_the_change_of_credentials(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        assert api.keys is not None
        server = in_cluster(api, tmp_path, "t", api.keys)
        chunks = server.watch(pods_path(), {"resourceVersion": api.store.version})
        reading = asyncio.ensure_future(anext(chunks))
        await api.watched()
        publish(tmp_path, "v2", "t", api.keys)
        await server.get(pods_path())
        api.put_pod(pod("a"))
        assert b"ADDED" in await reading
        await chunks.aclose()
        await server.aclose()
        await eventually(lambda: not api.connections)


async def test_many_requests_while_credentials_change_all_succeed(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        assert api.keys is not None
        server = in_cluster(api, tmp_path, "t", api.keys)
        for version in range(2, 8):
            requests = [asyncio.create_task(server.get(pods_path())) for _ in range(8)]
            await asyncio.sleep(0)
            publish(tmp_path, f"v{version}", "t", api.keys)
            requests += [asyncio.create_task(server.get(pods_path())) for _ in range(8)]
            await asyncio.gather(*requests)
        await server.aclose()
        await eventually(lambda: not api.connections)


async def with_plugin(api: FakeKubeApi, folder: Path, script: str, then: Callable[[ApiServer], Awaitable[None]]) -> None:
    plugin = folder / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    config = folder / "config"
    config.write_text(
        f"""
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{api.url}"}}}}]
users:
- name: u
  user:
    exec: {{apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [tok], env: [{{name: SUFFIX, value: en}}], interactiveMode: Never}}
"""
    )
    server = ApiServer(find_access(str(config), {}))
    await then(server)
    await server.aclose()


async def test_a_plugin_gives_the_token_and_is_asked_again_after_a_401(api: FakeKubeApi, tmp_path: Path) -> None:
    (tmp_path / "count").write_text("")
    script = f"""
echo x >> {tmp_path}/count
case "$KUBERNETES_EXEC_INFO" in *client.authentication.k8s.io/v1\\"*) ;; *) exit 1 ;; esac
echo "{{\\"status\\": {{\\"token\\": \\"$1$SUFFIX$(wc -l < {tmp_path}/count | tr -d ' ')\\"}}}}"
"""

    async def use(server: ApiServer) -> None:
        api.token = "token1"
        await server.get(pods_path())
        await server.get(pods_path())
        await api.stop()
        with pytest.raises(UnreachableError):
            await server.get(pods_path())
        await api.start()
        await server.get(pods_path())
        assert (tmp_path / "count").read_text() == "x\n"
        api.token = "token2"
        await server.get(pods_path())

    await with_plugin(api, tmp_path, script, use)
    assert (tmp_path / "count").read_text() == "x\nx\n"


@pytest.mark.parametrize(
    "script", ["echo no access >&2; exit 3", "echo '{}'", "echo nonsense", """echo '{"status": {}}'""", "echo '[]'"]
)
async def test_a_plugin_that_fails_is_told_as_what_it_is(api: FakeKubeApi, tmp_path: Path, script: str) -> None:
    async def use(server: ApiServer) -> None:
        with pytest.raises(CredentialsError):
            await server.get(pods_path())

    await with_plugin(api, tmp_path, script, use)


async def test_a_certificate_of_another_name_is_accepted_when_that_name_is_given(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        config = api.kubeconfig(tmp_path)
        text = config.read_text()
        for name, good in (("kubernetes.default.svc", True), ("elsewhere.example", False)):
            config.write_text(text.replace('"server"', f'"tls-server-name": "{name}", "server"'))
            server = ApiServer(find_access(str(config), {}))
            if good:
                await server.get(pods_path())
            else:
                with pytest.raises(UnreachableError, match=r"(?i)certificate"):
                    await server.get(pods_path())
            await server.aclose()


@pytest.mark.parametrize("content", ["secret\nsecret", "secret\0", ""])
async def test_a_token_that_cannot_stand_in_a_header_is_told_without_it(tmp_path: Path, content: str) -> None:
    async with kube_api() as api:
        token = tmp_path / "token"
        token.write_text(content)
        server = ApiServer(find_access(str(api.kubeconfig(tmp_path, token_file=token)), {}))
        for _ in range(2):
            with pytest.raises(CredentialsError) as caught:
                await server.get(pods_path())
            assert "secret" not in str(caught.value)
        token.write_text("good")
        await server.get(pods_path())
        await server.aclose()


class WithLineEnd(httpx2.Auth):
    """Credentials that the connection refuses."""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["authorization"] = "Bearer secret\n"
        yield request


async def test_what_the_connection_says_of_a_header_is_not_told(
    api: FakeKubeApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "user_auth", lambda user: WithLineEnd())
    with pytest.raises(CredentialsError) as caught:
        await server.get(pods_path())
    assert str(caught.value) == "credentials that cannot stand in a header"


async def test_a_request_that_is_too_long_is_an_error_like_others(server: ApiServer) -> None:
    params = {"labelSelector": "x" * 70_000}
    with pytest.raises(ApiError, match="a request that cannot be sent"):
        await server.get(pods_path(), params)
    with pytest.raises(ApiError, match="a request that cannot be sent"):
        await anext(server.watch(pods_path(), params))


async def test_an_answer_that_is_too_long_is_not_read(api: FakeKubeApi, tmp_path: Path) -> None:
    server = ApiServer(find_access(str(api.kubeconfig(tmp_path)), {}), answer_max_bytes=1000)
    api.refuse("list", 200, body=b"x" * 1000)
    assert len(await server.get(pods_path())) == 1000
    api.refuse("list", 200, body=b"x" * 1001)
    with pytest.raises(UnexpectedAnswerError, match="an answer longer than 1000 bytes"):
        await server.get(pods_path())
    await server.get(pods_path())
    await server.aclose()


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(("status", "kind"), [(401, UnauthorizedError), (500, BusyError)])
async def test_of_an_error_that_does_not_end_only_the_begin_is_read(
    tmp_path: Path, verb: str, status: int, kind: type[Exception]
) -> None:
    """Also between the two tries with a token of a file."""
    sent: list[int] = []
    async with endless(f"HTTP/1.1 {status} No\r\ntransfer-encoding: chunked\r\n\r\n".encode(), sent) as port:
        fake = FakeKubeApi()
        fake.port = port
        (tmp_path / "token").write_text("t")
        server = ApiServer(find_access(str(fake.kubeconfig(tmp_path, token_file=tmp_path / "token")), {}))
        with pytest.raises(kind, match="xxxx"):
            await (server.get(pods_path()) if verb == "list" else anext(server.watch(pods_path(), {})))
        await server.aclose()
        await eventually(lambda: len(sent) == (2 if status == 401 else 1))


async def test_a_compressed_answer_is_refused(api: FakeKubeApi, server: ApiServer) -> None:
    bomb = gzip.compress(b" " * (1 << 20))
    for verb in ("list", "watch"):
        api.refuse(verb, 200, body=bomb, headers={"content-encoding": "gzip"})
        api.refuse(verb, 500, body=bomb, headers={"content-encoding": "gzip"})
    with pytest.raises(UnexpectedAnswerError, match="a compressed answer"):
        await server.get(pods_path())
    with pytest.raises(BusyError, match="500 no message"):
        await server.get(pods_path())
    with pytest.raises(UnexpectedAnswerError, match="a compressed answer"):
        await anext(server.watch(pods_path(), {}))
    with pytest.raises(BusyError, match="500 no message"):
        await anext(server.watch(pods_path(), {}))


async def test_an_error_of_a_watch_that_comes_too_slowly_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "REQUEST_MAX_S", 0.05)
    async with endless(b"HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\nx", [], piece=b"") as port:
        fake = FakeKubeApi()
        fake.port = port
        server = ApiServer(find_access(str(fake.kubeconfig(tmp_path)), {}))
        with pytest.raises(UnreachableError, match="no answer within"):
            await anext(server.watch(pods_path(), {}))
        await server.aclose()


@asynccontextmanager
async def endless(head: bytes, sent: list[int], *, piece: bytes = b"10000\r\n" + b"x" * 65536 + b"\r\n") -> AsyncIterator[int]:
    """A server on the port that is yielded; its answers do not end.

    Args:
        sent: Gets the bytes of each answer, once the client has left.
        piece: Sent again and again; empty: nothing more comes.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 0
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while piece:
                writer.write(piece)
                await writer.drain()
                size += len(piece)
            await reader.read()
        except OSError:
            pass
        finally:
            sent.append(size)
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
