import asyncio
from functools import partial
from pathlib import Path

import pytest

from epp.discovery.discovery import Discovery, wait_for_cancellation
from epp.discovery.dns import DnsDiscovery
from epp.discovery.file import FileDiscovery
from epp.discovery.static import StaticDiscovery
from tests.discovery.fakes import RecordingPool, eventually, running


async def test_waiting_for_cancellation_ends_by_cancellation_only() -> None:
    task = asyncio.create_task(wait_for_cancellation())
    await asyncio.sleep(0)
    assert not task.done()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_same_endpoint_from_any_source_is_the_same_to_the_pool(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text('{"endpoints": [{"name": "127.0.0.1:8000", "address": "127.0.0.1", "port": 8000}]}')
    pools = [RecordingPool() for _ in range(3)]
    sources: list[Discovery] = [
        StaticDiscovery(pools[0], ["127.0.0.1:8000"]),
        DnsDiscovery(pools[1], "127.0.0.1:8000"),
        FileDiscovery(pools[2], path, known_engine=str),
    ]

    for source, pool in zip(sources, pools, strict=True):
        async with running(source.run()):
            await eventually(partial(getattr, pool, "listed"))

    assert [pool.endpoints[0].spec for pool in pools] == [pools[0].endpoints[0].spec] * 3
