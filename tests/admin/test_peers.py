"""Replicas that tell one another of drain calls, and peers that misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.admin.drain_calls import MAX_KEEP_S, MAX_PASSED_ON
from epp.lifecycle import Phase
from epp.pool.drain_marks import DrainMark
from epp.pool.endpoint import EndpointSpec, endpoint_address
from tests.admin.running import Admin, serving

PATIENCE_S = 90.0
OWN = "127.0.0.1:8000"
OF_OWN = f"/api/v1/endpoints/{OWN}"

pytestmark = pytest.mark.timeout(300)


def own(**changes: Any) -> EndpointSpec:
    return EndpointSpec(address=endpoint_address("127.0.0.1", 8000), name="own", **changes)


async def call(admin: Admin, method: str, path: str) -> tuple[int, Any]:
    async with admin.client.request(method, path) as answer:
        return answer.status, await answer.json()


@asynccontextmanager
async def two_replicas(incarnation: str = "") -> AsyncIterator[tuple[Admin, Admin, str]]:
    """Two replicas that know of both, and the name of the second; each has one endpoint."""
    async with serving() as first, serving() as second:
        both = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
        for admin in (first, second):
            admin.replicas.extend(both)
            admin.pool.sync([own(incarnation=incarnation)])
        yield first, second, both[1]


@asynccontextmanager
async def peer_that_answers(answer: bytes | Callable[[asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A program that answers every request with these bytes, whatever they are; its `ip:port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


async def test_a_call_takes_effect_on_all_replicas_and_the_answer_says_so() -> None:
    async with two_replicas() as (first, second, name):
        second.pool.count_pick(second.pool.endpoints[0])

        status, told = await call(first, "POST", f"{OF_OWN}/drain?keep=10m")

        assert status == 200
        assert told["peers"] == {name: {"in_flight_requests": 1, "state": "draining"}}
        assert (told["in_flight_requests"], told["own_in_flight_requests"]) == (1, 0)
        for admin in (first, second):
            mark = admin.pool.endpoints[0].mark
            assert mark is not None
            assert mark.left_s(admin.clock.now_s) == 600.0
            assert admin.pool.ready == ()

        _, told = await call(second, "POST", f"{OF_OWN}/undrain")
        assert len(first.pool.ready) == len(second.pool.ready) == 1
        assert told["peers"] == {f"127.0.0.1:{first.port}": {"in_flight_requests": 0, "state": "ready"}}


async def test_a_forwarded_call_is_not_forwarded_again() -> None:
    """Otherwise two replicas would tell one another for ever."""
    async with two_replicas() as (first, second, _):
        async with first.client.post(f"{OF_OWN}/drain", headers={"x-epp-forwarded": "somebody"}) as answer:
            assert (await answer.json()).get("peers") is None
        assert first.pool.endpoints[0].mark is not None
        assert second.pool.endpoints[0].mark is None


async def test_a_forwarded_call_from_a_replicas_address_needs_no_token() -> None:
    async with serving() as admin:
        admin.pool.sync([EndpointSpec(address=endpoint_address("10.0.0.1", 8000), name="other")])
        path = "/api/v1/endpoints/10.0.0.1:8000/drain"
        async with admin.client.post(path, headers={"x-epp-forwarded": "somebody"}) as answer:
            assert answer.status == 403
        admin.replicas.append("127.0.0.1:1")
        async with admin.client.post(path) as answer:
            assert answer.status == 403
        async with admin.client.post(path, headers={"x-epp-forwarded": "somebody"}) as answer:
            assert answer.status == 200


async def test_a_call_is_passed_on_with_the_token(tmp_path: Path) -> None:
    """The other replica may see it come from an address that it does not know."""
    file = tmp_path / "token"
    file.write_text("s3cret")
    async with serving(token_file=file) as second, serving(token_file=file, replicas=[f"127.0.0.1:{second.port}"]) as first:
        for admin in (first, second):
            admin.pool.sync([EndpointSpec(address=endpoint_address("10.0.0.1", 8000), name="other")])
        path = "/api/v1/endpoints/10.0.0.1:8000/drain"
        async with first.client.post(path, headers={"authorization": "Bearer s3cret"}) as answer:
            assert answer.status == 200
        assert second.pool.endpoints[0].mark is not None


async def test_the_wait_is_for_the_requests_of_all_replicas() -> None:
    async with two_replicas() as (first, second, _):
        for admin in (first, second):
            admin.pool.count_pick(admin.pool.endpoints[0])
        waiting = asyncio.create_task(call(first, "GET", f"{OF_OWN}/drained?timeout=60s"))
        await until(lambda: first.watched() == 1)
        first.pool.count_release(first.pool.endpoints[0])
        await until(lambda: second.watched() == 1)
        assert not waiting.done()
        second.pool.count_release(second.pool.endpoints[0])
        async with asyncio.timeout(PATIENCE_S):
            status, told = await waiting
    assert (status, told["in_flight_requests"]) == (200, 0)


async def test_when_the_time_is_up_the_count_is_that_of_all_replicas() -> None:
    async with two_replicas() as (first, second, name):
        second.pool.count_pick(second.pool.endpoints[0])
        second.pool.count_pick(second.pool.endpoints[0])
        status, told = await call(first, "GET", f"{OF_OWN}/drained?timeout=20ms")
    assert (status, told["in_flight_requests"], told["own_in_flight_requests"]) == (202, 2, 0)
    assert told["peers"][name]["in_flight_requests"] == 2


async def test_a_replica_whose_pool_lacks_the_endpoint_has_no_request_there() -> None:
    async with two_replicas() as (first, second, name):
        second.pool.sync([])
        status, told = await call(first, "GET", f"{OF_OWN}/drained?timeout=0s")
    assert (status, told["peers"][name]) == (200, {"in_flight_requests": 0, "state": "unknown"})


async def test_a_replica_that_starts_later_learns_the_marks_of_the_others() -> None:
    async with two_replicas("uid-1/0") as (first, second, _):
        clock = first.clock
        first.pool.mark(first.pool.endpoints[0], DrainMark(marked_at_s=clock.now_s, ends_at_s=clock.now_s + 60))

        await second.peers.learn(second.pool)

        (endpoint,) = second.pool.endpoints
        assert endpoint.mark is not None
        assert endpoint.mark.left_s(second.clock.now_s) == 60.0


async def test_a_mark_to_keep_for_very_long_hides_no_other() -> None:
    """A model server may say how long for itself; what is said of others must not be lost by it."""
    other = EndpointSpec(address=endpoint_address("127.0.0.1", 8001), name="other")
    async with serving() as first, serving(replicas=[f"127.0.0.1:{first.port}"]) as second:
        first.pool.sync([other, own()])
        assert (await call(first, "POST", "/api/v1/endpoints/127.0.0.1:8001/drain"))[0] == 200
        first.clock.advance(2 * MAX_KEEP_S)
        assert (await call(first, "POST", f"{OF_OWN}/drain?keep={MAX_KEEP_S:.0f}s"))[0] == 200
        second.pool.sync([other, own()])
        await second.peers.learn(second.pool)
        assert [endpoint.mark is not None for endpoint in second.pool.endpoints] == [True, True]


async def test_marks_of_another_incarnation_are_not_learned_and_none_is_shortened() -> None:
    async with two_replicas("uid-1/0") as (first, second, _):
        now_s = first.clock.now_s
        first.pool.mark(first.pool.endpoints[0], DrainMark(marked_at_s=now_s, ends_at_s=now_s + 60))
        second.pool.mark(second.pool.endpoints[0], DrainMark(marked_at_s=now_s))
        await second.peers.learn(second.pool)
        assert second.pool.endpoints[0].mark == DrainMark(marked_at_s=now_s)
        second.pool.sync([own(incarnation="uid-1/1")])
        await second.peers.learn(second.pool)
        assert second.pool.endpoints[0].mark is None


async def test_a_replica_that_hears_itself_leaves_itself_out() -> None:
    async with serving() as admin:
        admin.replicas.append(f"127.0.0.1:{admin.port}")
        admin.pool.sync([own()])
        _, told = await call(admin, "POST", f"{OF_OWN}/drain")
        assert told["peers"] == {}
        assert admin.peers.others == ()


UNREADABLE = (
    http(b""),
    http(b"[]"),
    http(b"null"),
    http(b'{"in_flight_requests": -1}'),
    http(b'{"in_flight_requests": true}'),
    http(b'{"in_flight_requests": 1e99}'),
    http(b'{"in_flight_requests": 99999999999999999999}'),
    http(b'{"in_flight_requests": "1"}'),
    http(b'{"in_flight_requests": 0, "more": ' + b"[" * 60_000 + b"]" * 5_000 + b"}"),
    http(b'{"in_flight_requests": 0}' + b" " * 70_000),
    http(b'{"state": "\xff"}'),
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
    b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    http(b"{}", "500 Oops"),
    http(b"{}", "403 No"),
    http(b'{"error": {"code": "not_found", "message": "a version without drain calls"}}', "404 Not Found"),
    http(b"404 page not found", "404 Not Found"),
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    b"",
)


@pytest.mark.parametrize("answer", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_a_peer_that_talks_nonsense_is_silent_and_harms_nobody(answer: bytes) -> None:
    async with peer_that_answers(answer) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        status, told = await call(admin, "POST", f"{OF_OWN}/drain")
        assert status == 200
        said = told["peers"][peer]
        assert (said["in_flight_requests"], said["taken_for_dead"]) == (None, False)
        assert said["error"]
        assert len(said["error"]) < 100
        await admin.peers.learn(admin.pool)
        assert admin.peers.failed_calls == 2
    assert len([line for line in admin.logged.getvalue().splitlines() if "another replica" in line]) == 1


async def test_no_peer_sends_a_call_elsewhere() -> None:
    async with peer_that_answers(http(b"{}")) as elsewhere:
        moved = f"HTTP/1.1 307 Moved\r\nlocation: http://{elsewhere}/\r\ncontent-length: 0\r\n\r\n"
        async with peer_that_answers(moved.encode()) as peer, serving(replicas=[peer]) as admin:
            admin.pool.sync([own()])
            _, told = await call(admin, "POST", f"{OF_OWN}/drain")
    assert told["peers"][peer]["error"] == "answered 307"


async def test_an_answer_in_pieces_is_read_whole() -> None:
    async def in_pieces(writer: asyncio.StreamWriter) -> None:
        for piece in (b"HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n", b'{"in_flight_', b'requests": ', b"7}"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async with peer_that_answers(in_pieces) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        _, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=0s")
    assert told["in_flight_requests"] == 7


async def test_a_peer_that_never_answers_costs_its_time_limit_only() -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with peer_that_answers(never) as peer, serving(replicas=[peer], peer_timeout_s=0.05) as admin:
        admin.pool.sync([own()])
        async with asyncio.timeout(PATIENCE_S):
            _, told = await call(admin, "POST", f"{OF_OWN}/drain")
    assert told["peers"][peer]["error"] == "no answer within 0.05 s"


async def test_callers_that_hang_up_leave_a_limited_number_of_calls_under_way() -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await asyncio.Event().wait()

    async def heard(times: int) -> None:
        await until(lambda: len(asked) == times)

    asked: list[asyncio.StreamWriter] = []
    async with peer_that_answers(never) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        for number in range(1, MAX_PASSED_ON + 1):
            _, writer = await asyncio.open_connection("127.0.0.1", admin.port)
            writer.write(f"POST {OF_OWN}/drain HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await heard(number)
            writer.close()
        async with asyncio.timeout(PATIENCE_S):
            status, told = await call(admin, "POST", f"{OF_OWN}/drain")
    assert (status, told["peers"][peer]["error"], len(asked)) == (200, "not asked now", MAX_PASSED_ON)


async def test_a_silent_peer_counts_with_its_last_word_for_a_while_and_is_dead_then() -> None:
    counts = [3]

    async def counting(writer: asyncio.StreamWriter) -> None:
        writer.write(http(json.dumps({"in_flight_requests": counts.pop()}).encode()) if counts else http(b"{}", "500 Oops"))

    drained = f"{OF_OWN}/drained?timeout=0s"
    async with peer_that_answers(counting) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        assert (await call(admin, "GET", drained))[1]["in_flight_requests"] == 3
        admin.clock.advance(30)
        status, told = await call(admin, "GET", drained)
        assert (status, told["in_flight_requests"], told["peers"][peer]["error"]) == (202, 3, "answered 500")
        admin.clock.advance(30)
        status, told = await call(admin, "GET", drained)
        assert (status, told["in_flight_requests"], told["peers"][peer]["taken_for_dead"]) == (202, 0, False)
        admin.clock.advance(0.1)
        status, told = await call(admin, "GET", drained)
        assert (status, told["in_flight_requests"], told["peers"][peer]["taken_for_dead"]) == (200, 0, True)


@pytest.mark.parametrize("answered", [True, False], ids=["answered before", "failed before"])
async def test_a_peer_that_nobody_asked_for_long_is_not_dead_at_the_first_call_that_fails(answered: bool) -> None:
    good = [http(b'{"in_flight_requests": 0}')] * answered

    async def once(writer: asyncio.StreamWriter) -> None:
        writer.write(good.pop() if good else http(b"{}", "500 Oops"))

    drained = f"{OF_OWN}/drained?timeout=0s"
    async with peer_that_answers(once) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        await call(admin, "GET", drained)
        admin.clock.advance(3600)
        status, told = await call(admin, "GET", drained)
        assert (status, told["peers"][peer]["taken_for_dead"]) == (202, False)


async def test_at_a_shutdown_a_peer_that_was_not_asked_for_long_is_not_taken_for_idle() -> None:
    async with two_replicas() as (first, second, name):
        assert (await call(first, "GET", f"{OF_OWN}/drained?timeout=0s"))[0] == 200
        first.clock.advance(3600)
        second.pool.count_pick(second.pool.endpoints[0])
        first.lifecycle.enter(Phase.DRAINING)
        status, told = await call(first, "GET", f"{OF_OWN}/drained?timeout=0s")
    assert (status, told["peers"][name]["in_flight_requests"]) == (202, None)


async def test_a_peer_that_never_said_a_word_is_not_idle_until_it_counts_as_dead() -> None:
    async with serving(replicas=["127.0.0.1:1"]) as admin:
        admin.pool.sync([own()])
        drained = f"{OF_OWN}/drained?timeout=0s"
        status, told = await call(admin, "GET", drained)
        assert (status, told["peers"]["127.0.0.1:1"]["in_flight_requests"]) == (202, None)
        for _ in range(2):
            admin.clock.advance(20)
            status, _ = await call(admin, "GET", drained)
        assert status == 200


async def test_a_peer_that_dns_no_longer_names_counts_no_more() -> None:
    async with serving(replicas=["127.0.0.1:1"]) as admin:
        admin.pool.sync([own()])
        assert (await call(admin, "GET", f"{OF_OWN}/drained?timeout=0s"))[0] == 202
        admin.replicas.clear()
        status, told = await call(admin, "GET", f"{OF_OWN}/drained?timeout=0s")
        assert (status, told["peers"]) == (200, {})


async def test_a_name_without_an_address_is_a_silent_peer() -> None:
    async with serving(replicas=["nowhere.example:9090"]) as admin:
        admin.pool.sync([own()])
        _, told = await call(admin, "POST", f"{OF_OWN}/drain")
    assert told["peers"]["nowhere.example:9090"]["error"] == "its name has no address"


async def test_unreadable_marks_of_a_peer_are_none() -> None:
    marks = {"instance": "x", "marks": [{"endpoint": OWN, "incarnation": "", "since_s": -1, "ends_in_s": None}]}
    async with peer_that_answers(http(json.dumps(marks).encode())) as peer, serving(replicas=[peer]) as admin:
        admin.pool.sync([own()])
        await admin.peers.learn(admin.pool)
        assert admin.pool.endpoints[0].mark is None
        assert admin.peers.failed_calls == 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)
