"""An endpoint that is removed or marked as draining while it works: nothing new goes there, what runs there ends well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Upstream
from tests.flows.harness import Setting, start_pair, start_upstreams, wait_until, write_endpoints, write_entries, write_file

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
LAST_RESORT = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, drain: {lastResort: true}}"


@asynccontextmanager
async def start_scene(file: Path, *arguments: str, count: int = 3) -> AsyncIterator[Setting]:
    """Model servers that are named in a file."""
    async with start_upstreams(count) as upstreams:
        write_endpoints(file, upstreams)
        async with start_pair(upstreams, "--endpoints-file", str(file), *arguments) as scene:
            yield scene


async def wait_for_state(scene: Setting, upstream: Upstream, state: str | None) -> None:
    """Wait until the picker has seen the change of the file; a state of None is that the endpoint is gone."""

    async def has_it() -> bool:
        endpoint = (await scene.epp.pool()).get(upstream.endpoint)
        return (endpoint and endpoint["state"]) == state

    await wait_until(has_it, f"{upstream.name} to be {state or 'gone'}")


async def in_flight_of(scene: Setting, upstream: Upstream) -> int:
    count: int = (await scene.epp.pool())[upstream.endpoint]["in_flight_requests"]
    return count


def change(how: str, file: Path, scene: Setting, leaving: Upstream) -> None:
    if how == "removed":
        write_endpoints(file, [upstream for upstream in scene.upstreams if upstream is not leaving])
    else:
        write_endpoints(file, scene.upstreams, draining=[leaving])


@pytest.mark.parametrize("how", ["removed", "draining"])
async def test_streams_on_an_endpoint_that_leaves_end_whole_and_nothing_new_goes_there(how: str, tmp_path: Path) -> None:
    """Field reports 1 and 46: no new pick once it is seen, the streams stay counted until they end."""
    file = tmp_path / "endpoints.json"
    async with start_scene(file) as scene:
        leaving = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(6, "/held", body=BODY) as streams:
                assert scene.shares() == [2, 2, 2]
                change(how, file, scene, leaving)
                await wait_for_state(scene, leaving, "draining")
                entry = (await scene.epp.pool())[leaving.endpoint]
                async with scene.at_once(20, "/held", body=BODY) as later:
                    assert scene.shares() == [2, 12, 12]
                    assert await in_flight_of(scene, leaving) == 2
                    scene.open_gates()
                    answers = await asyncio.gather(*streams, *later)
        await wait_for_state(scene, leaving, None if how == "removed" else "draining")
        await scene.epp.wait_idle()

    assert entry["reason"] == ("no longer in the pool" if how == "removed" else "marked as draining")
    assert all(answer.body.endswith(b"[DONE]\n\n") and not answer.cut for answer in answers)
    assert scene.epp.log_records("error") == []


async def test_an_endpoint_that_comes_back_still_has_the_count_of_its_streams(tmp_path: Path) -> None:
    """Field report 9: away and here again while streams run there; they still weigh."""
    file = tmp_path / "endpoints.json"
    async with start_scene(file) as scene:
        leaving = scene.upstreams[0]
        with scene.gates_closed():
            async with scene.at_once(9, "/held", body=BODY):
                change("removed", file, scene, leaving)
                await wait_for_state(scene, leaving, "draining")
                write_endpoints(file, scene.upstreams)
                await wait_for_state(scene, leaving, "ready")
                assert await in_flight_of(scene, leaving) == 3
                async with scene.at_once(4, "/held", body=BODY):
                    assert scene.shares()[0] <= 4
        await scene.epp.wait_idle()


async def test_steady_traffic_loses_nothing_while_endpoints_come_and_go(tmp_path: Path) -> None:
    """Field report 1: an endpoint may stop once the picker says that nothing is in flight there any more."""
    file = tmp_path / "endpoints.json"
    async with start_scene(file) as scene:
        statuses: list[int] = []
        stop = asyncio.Event()

        async def traffic() -> None:
            while not stop.is_set():
                statuses.append((await scene.fetch("/sse?events=3&gap_ms=10", body=BODY)).status)

        clients = [asyncio.create_task(traffic()) for _ in range(6)]
        try:
            for leaving in scene.upstreams:
                change("draining", file, scene, leaving)
                await wait_for_state(scene, leaving, "draining")
                await wait_until(lambda at=leaving: _is_drained(scene, at), f"{leaving.name} to be drained")  # type: ignore[misc]
                await leaving.stop()
                await leaving.start()
                write_endpoints(file, scene.upstreams)
                await wait_for_state(scene, leaving, "ready")
                aim = len(statuses) + 12
                await wait_until(lambda at=aim: len(statuses) >= at, "answers to go on")  # type: ignore[misc]
        finally:
            stop.set()
            await asyncio.gather(*clients)

    assert set(statuses) == {200}


async def _is_drained(scene: Setting, upstream: Upstream) -> bool:
    return await in_flight_of(scene, upstream) == 0


def check_refusal(answer: Any, code: str) -> None:
    assert answer.status == 503
    assert answer.head.get("content-type") == "application/json"
    assert answer.head.get("x-epp-reason") == code
    assert int(answer.head.get("retry-after")) >= 1
    error = answer.json()["error"]
    assert error["code"] == code
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "code"}


@pytest.mark.parametrize("how", ["all draining", "an empty list"])
async def test_a_pool_without_a_ready_endpoint_refuses_with_503(how: str, tmp_path: Path) -> None:
    """The streams that run go on; the answer says why and when to come again."""
    file = tmp_path / "endpoints.json"
    async with start_scene(file, count=2) as scene:
        with scene.gates_closed():
            async with scene.at_once(2, "/held", body=BODY) as streams:
                if how == "all draining":
                    write_endpoints(file, scene.upstreams, draining=scene.upstreams)
                else:
                    write_entries(file, [])
                for upstream in scene.upstreams:
                    await wait_for_state(scene, upstream, "draining")
                check_refusal(await scene.fetch(body=BODY), "no_endpoints")
                check_refusal(await scene.fetch("/v1/models", method="GET"), "no_endpoints")
                scene.open_gates()
                answers = await asyncio.gather(*streams)
        write_endpoints(file, scene.upstreams)
        for upstream in scene.upstreams:
            await wait_for_state(scene, upstream, "ready")
        again = await scene.fetch(body=BODY)

    assert all(answer.body.endswith(b"[DONE]\n\n") for answer in answers)
    assert again.status == 200


async def test_with_last_resort_a_draining_endpoint_is_picked_when_no_other_is_left(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    async with start_scene(file, "--config-text", LAST_RESORT, count=2) as scene:
        write_endpoints(file, scene.upstreams, draining=scene.upstreams[:1])
        await wait_for_state(scene, scene.upstreams[0], "draining")
        for _ in range(10):
            assert (await scene.fetch(body=BODY)).json()["server"] == "upstream-1"
        write_endpoints(file, scene.upstreams, draining=scene.upstreams)
        await wait_for_state(scene, scene.upstreams[1], "draining")
        servers = {
            (await scene.fetch(body=BODY)).json()["server"] for _ in range(40)
        }  # both, unless a coin falls on one side only
        write_entries(file, [])
        for upstream in scene.upstreams:
            await wait_for_state(scene, upstream, None)
        check_refusal(await scene.fetch(body=BODY), "no_endpoints")

    assert servers == {"upstream-0", "upstream-1"}


async def test_a_broken_file_keeps_the_last_good_pool(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    async with start_scene(file, count=2) as scene:
        write_file(file, "endpoints: [{name: a, address: 10.0.0.1, prot: 8000}]")

        async def is_refused() -> bool:
            return await scene.epp.metric("epp_config_valid") == 0

        await wait_until(is_refused, "epp_config_valid 0")
        statuses = {(await scene.fetch(body=BODY)).status for _ in range(10)}
        errors = scene.epp.log_records("error")
        write_endpoints(file, scene.upstreams)
        await wait_until(lambda: _is_valid(scene), "epp_config_valid 1")

    assert statuses == {200}
    assert len(errors) == 1
    assert "prot" in str(errors[0])


async def _is_valid(scene: Setting) -> bool:
    return await scene.epp.metric("epp_config_valid") == 1
