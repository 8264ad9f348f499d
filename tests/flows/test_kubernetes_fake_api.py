"""`epp serve` against an API server that misbehaves on demand; model servers are real, and so are the picks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ext_proc_client import ExtProcClient, destination
from tests.fakes.kube_api import FakeKubeApi, kube_api, pods_path
from tests.fakes.kube_objects import inference_pool, pod
from tests.fakes.upstream import Upstream
from tests.flows.epp_process import EppProcess, wait_until
from tests.flows.harness import write_file
from tests.kubernetes.scene import LABELS, POOL, ready, start_servers, until_ready

WATCHES = 6
"""Of the pool, the pods, and two kinds in two groups."""
BACK_S = 60.0
"""How long it may take until the API server is followed again, pauses after failures included."""


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeApi]:
    async with kube_api() as started:
        yield started


@asynccontextmanager
async def picker(api: FakeKubeApi, folder: Path, *arguments: str, **options: Any) -> AsyncIterator[EppProcess]:
    """An endpoint picker that finds the pool in the fake API server; options are those of `EppProcess`."""
    kubeconfig = folder / "kubeconfig"
    if not kubeconfig.exists():
        api.kubeconfig(folder)
    async with EppProcess("--pool-name", POOL, "--kubeconfig", str(kubeconfig), *arguments, **options) as epp:
        yield epp


def put_pod(api: FakeKubeApi, server: Upstream, **rest: Any) -> None:
    """The pod of a model server."""
    api.put_pod(pod(server.name, ip=server.host, labels=LABELS, ports=(server.port,), **rest))


def put_pool(api: FakeKubeApi, servers: Sequence[Upstream]) -> None:
    """The pool of model servers on one port, and their pods."""
    api.put_inference_pool(inference_pool(POOL, selector=LABELS, ports=(servers[0].port,)))
    for server in servers:
        put_pod(api, server)


def discovery_lines(epp: EppProcess) -> list[dict[str, Any]]:
    return [record for record in epp.log_records() if record["logger"] == "discovery"]


@asynccontextmanager
async def held(client: ExtProcClient, count: int) -> AsyncIterator[Counter[str]]:
    """Requests that are picked one after the other, and whose answers do not come while the block runs: where they went."""
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(count):
            stream = client.stream()
            await stream.send_headers(end_of_stream=True)
            stack.push_async_callback(stream.close)
            reply = await stream.read()
            assert reply is not None
            addresses.append(destination(reply))
        yield Counter(addresses)


async def test_serving_begins_when_the_pods_were_listed(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 79: a list that takes long delays readiness by as long, and the first request is answered."""
    api.hold_lists(pods_path())
    async with start_servers(2) as servers:
        put_pool(api, servers)
        async with picker(api, tmp_path, ready=False) as epp, ExtProcClient(str(epp.grpc)) as client:

            async def state() -> tuple[str, int]:
                return await client.check("readiness"), (await epp.get("/readyz"))[0]

            await wait_until(lambda: any(request.path == pods_path() for request in api.requests), "the list of pods", BACK_S)
            before = []
            for _ in range(20):
                before.append(await state())
                await asyncio.sleep(0.05)
            api.release_lists()
            seen = []

            async def serves() -> bool:
                seen.append(await state())
                return seen[-1] == ("SERVING", 200)

            await wait_until(serves, "it to serve", BACK_S)
            first = await client.pick()

    assert set(before) == {("NOT_SERVING", 503)}
    mixed = [each for each in seen if each not in (("NOT_SERVING", 503), ("SERVING", 200))]
    assert len(mixed) <= 1, "both at once, but asked one after the other"
    assert first in {server.endpoint for server in servers}


async def test_a_pod_that_is_deleted_while_nobody_watches_gets_nothing_after_the_next_list(
    api: FakeKubeApi, tmp_path: Path
) -> None:
    """Field report 3: what a list does not name is gone; until then the last state serves."""
    async with start_servers(3) as servers:
        leaving, *staying = servers
        put_pool(api, servers)
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            await api.watched(WATCHES)
            await api.stop()
            api.delete_pod(leaving.name)
            api.compact()
            lists = len(_pod_lists(api))
            assert (await client.picks(60)).keys() == {server.endpoint for server in servers}
            await api.start()
            await wait_until(lambda: len(_pod_lists(api)) > lists, "a list", BACK_S)
            await until_ready(epp, staying, BACK_S)
            picks = await client.picks(200)
        assert picks.keys() == {server.endpoint for server in staying}
        assert epp.log_records("error") == []


def _pod_lists(api: FakeKubeApi) -> list[object]:
    return [request for request in api.requests if request.verb == "list" and request.path == pods_path()]


async def test_watches_that_are_cut_within_a_line_lose_nothing_and_say_little(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 4: five times in a row, with a change that nobody saw in between."""
    async with start_servers(4) as servers:
        coming, *others = servers
        put_pool(api, others)
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            for number in range(5):
                await api.watched(WATCHES, within_s=BACK_S)
                api.cut_watches(within_a_line=True)
                if number % 2:
                    api.delete_pod(coming.name)
                else:
                    put_pod(api, coming)
                assert await client.pick() in {server.endpoint for server in servers}
            await wait_until(lambda: _is(epp, servers), "all four", BACK_S)
            api.delete_pod(coming.name)
            await until_ready(epp, others, BACK_S)
            lines = discovery_lines(epp)
        assert [line for line in lines if line["level"] in ("warning", "error")] == []
        assert len(lines) <= 5, lines
        assert epp.log_records("error") == []


async def _is(epp: EppProcess, servers: Sequence[Upstream]) -> bool:
    return await ready(epp) == {server.endpoint for server in servers}


async def test_a_token_that_is_rotated_is_read_again(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 5: without a restart, and requests are picked all the while."""
    token = tmp_path / "token"
    token.write_text("token-one")
    api.token = "token-one"
    api.kubeconfig(tmp_path, token_file=token)
    async with start_servers(3) as servers:
        coming, *others = servers
        put_pool(api, others)
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            await api.watched(WATCHES)
            api.token = "token-two"
            api.cut_watches()
            await wait_until(lambda: _lines(epp, "kubernetes request fails") == WATCHES, "a refusal of all requests", BACK_S)
            assert (await client.picks(40)).keys() == {server.endpoint for server in others}
            write_file(token, "token-two")
            put_pod(api, coming)
            await wait_until(lambda: _is(epp, servers), "the new pod", BACK_S)
            await api.watched(WATCHES, within_s=BACK_S)
            await wait_until(
                lambda: _lines(epp, "kubernetes request works again") == WATCHES, "as many lines of success", BACK_S
            )
        assert "token-one" not in epp.log_text()
        assert "token-two" not in epp.log_text()


def _lines(epp: EppProcess, event: str) -> int:
    return len([line for line in discovery_lines(epp) if line["event"] == event])


async def test_a_token_that_is_rotated_in_time_is_no_news(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 5, as the kubelet does it: the file changes while the old token is still good."""
    token = tmp_path / "token"
    token.write_text("token-one")
    api.token = "token-one"
    api.kubeconfig(tmp_path, token_file=token)
    async with start_servers(2) as servers:
        put_pool(api, servers[:1])
        async with picker(api, tmp_path) as epp:
            await api.watched(WATCHES)
            write_file(token, "token-two")
            api.token = "token-two"
            api.cut_watches()
            put_pod(api, servers[1])
            await until_ready(epp, servers, BACK_S)
            await api.watched(WATCHES, within_s=BACK_S)
        assert [line for line in discovery_lines(epp) if line["level"] != "info"] == []


async def test_the_ports_of_one_pod_have_loads_of_their_own(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 7: data-parallel ranks, one with a queue of 30 and one without."""
    async with Upstream("rank-0") as busy, Upstream("rank-1") as idle:
        busy.waiting_requests = 30
        api.put_inference_pool(inference_pool(POOL, selector=LABELS, ports=(busy.port, idle.port)))
        api.put_pod(pod("ranks", ip=busy.host, labels=LABELS, ports=(busy.port, idle.port)))
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            picks = await client.picks(30)
            names = {each["endpoint"]: each["name"] for each in (await epp.pool()).values()}
    assert picks == {idle.endpoint: 30}
    assert names == {busy.endpoint: "ranks-rank-0", idle.endpoint: "ranks-rank-1"}


async def test_an_ipv6_address_is_in_brackets_in_the_header_and_for_scrapes(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 11."""
    async with Upstream("v6", "::1") as server:
        api.put_inference_pool(inference_pool(POOL, selector=LABELS, ports=(server.port,)))
        put_pod(api, server)
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            picked = await client.pick()
            await wait_until(lambda: server.metrics_hits > 2, "scrapes")
    assert picked == f"[::1]:{server.port}"


async def test_of_two_addresses_the_family_can_be_chosen(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 11."""
    async with Upstream("v6", "::1") as server:
        api.put_inference_pool(inference_pool(POOL, selector=LABELS, ports=(server.port,)))
        api.put_pod(pod("both", ip="127.0.0.1", ips=("127.0.0.1", "::1"), labels=LABELS, ports=(server.port,)))
        async with (
            picker(api, tmp_path, "--endpoint-ip-family", "ipv6") as epp,
            ExtProcClient(str(epp.grpc)) as client,
        ):
            picked = await client.pick()
    assert picked == f"[::1]:{server.port}"


async def test_a_pod_that_is_not_ready_has_no_influence_on_the_choice_among_the_others(
    api: FakeKubeApi, tmp_path: Path
) -> None:
    """Field report 56: it looks idle, and still the two others are compared with each other alone."""
    async with start_servers(3) as servers:
        first, second, unready = servers
        first.running_requests, second.running_requests = 5, 8
        put_pool(api, servers)
        put_pod(api, unready, ready=False)
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            await until_ready(epp, [first, second], BACK_S)
            assert await client.picks(20) == {first.endpoint: 20}
            second.running_requests = 5
            await epp.wait_scraped()
            picks = await client.picks(40)
    assert picks.keys() == {first.endpoint, second.endpoint}


async def test_a_pod_that_is_added_to_a_busy_pool_gets_its_part_and_no_flood(api: FakeKubeApi, tmp_path: Path) -> None:
    """Field report 57: of the next 40 requests between 3 and 12."""
    async with start_servers(8) as servers:
        new, *others = servers
        put_pool(api, others)
        for server in others:
            server.running_requests = 8
        async with picker(api, tmp_path) as epp, ExtProcClient(str(epp.grpc)) as client:
            put_pod(api, new)
            await until_ready(epp, servers, BACK_S)
            await epp.wait_scraped()
            async with held(client, 40) as picks:
                assert 3 <= picks[new.endpoint] <= 12, picks
                assert len(picks) == 8
