"""Measures the endpoint picker beside the Envoy that asks it: CPU, latency, memory."""

import asyncio
import time
from dataclasses import dataclass

from tests.bench.cases import LoadCase, Scale
from tests.bench.load import LoadResult
from tests.bench.machine import cpu_s, rss_mib
from tests.bench.scene import Scene, Stage, start_picker

_BASE_S = 3.0
_FEWEST_FOR_P99 = 200
_STARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One round of one case.

    Attributes:
        full: At the highest rate; the CPU times are of this.
        epp_cpu_s: All that the endpoint picker used, scraping included.
        idle_cores: What it used without requests, just before.
        envoy_cpu_s: What the Envoy beside it used.
        half: At half of that rate.
        plain: At the same rate as `half`, through the Envoy without an endpoint picker.
        rss_mib: Of the endpoint picker, at the end.
    """

    case: str
    full: LoadResult
    took_s: float
    epp_cpu_s: float
    idle_cores: float
    envoy_cpu_s: float
    half: LoadResult
    plain: LoadResult
    rss_mib: float

    @property
    def ratio(self) -> float:
        """The EPP's CPU time for each second of Envoy's."""
        return self.epp_cpu_s / max(self.envoy_cpu_s, 1e-9)

    @property
    def failed(self) -> dict[str, int]:
        """What went wrong in any of the three runs, by reason."""
        reasons: dict[str, int] = {}
        for result in (self.full, self.half, self.plain):
            for reason, count in result.failed.items():
                reasons[reason] = reasons.get(reason, 0) + count
        return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRun:
    """An endpoint picker without requests.

    Attributes:
        cores: CPU seconds a second.
        scrapes_per_s: Pages it read meanwhile.
        rss_mib: At rest.
    """

    endpoints: int
    cores: float
    scrapes_per_s: float
    rss_mib: float


async def measure_load(scene: Scene, case: LoadCase, scale: Scale) -> LoadRun:
    """One round: warm up, highest rate, half of it, half of it without the endpoint picker."""
    generator, body = scene.stage.generator, scene.stage.bodies[case.body_bytes]
    requests, connections = int(case.requests * scale.part), case.connections
    fewer = max(requests // 4, _FEWEST_FOR_P99)
    for port in (scene.front_port, scene.plain_port):
        await generator.run(port, body, max(requests // 10, connections), connections)
    idle_cores = await _cores_used(scene.epp.pid, _BASE_S)
    epp_before_s, envoy_before_s, began_s = cpu_s(scene.epp.pid), cpu_s(scene.front.pid), time.perf_counter()
    full = await generator.run(scene.front_port, body, requests, connections)
    epp_s, envoy_s = cpu_s(scene.epp.pid) - epp_before_s, cpu_s(scene.front.pid) - envoy_before_s
    took_s = time.perf_counter() - began_s
    rate = max(full.requests_per_s / 2 / connections, 0.1)
    return LoadRun(
        case=case.name,
        full=full,
        took_s=took_s,
        epp_cpu_s=epp_s,
        idle_cores=idle_cores,
        envoy_cpu_s=envoy_s,
        half=await generator.run(scene.front_port, body, fewer, connections, rate),
        plain=await generator.run(scene.plain_port, body, fewer, connections, rate),
        rss_mib=rss_mib(scene.epp.pid),
    )


async def measure_starts(stage: Stage, endpoints: int) -> list[float]:
    """Seconds of some starts, one after the other, from the process to ready."""
    starts_s = []
    for _ in range(_STARTS):
        async with start_picker(stage, endpoints) as epp:
            starts_s.append(epp.start_s)
    return starts_s


async def measure_idle(scene: Scene, endpoints: int, scale: Scale) -> IdleRun:
    """Watch the endpoint picker do nothing but scrape. Reading `/metrics` stays outside of the time that counts."""
    resting_mib = rss_mib(scene.epp.pid)
    scrapes_before, began_s = await scene.epp.scrapes_total(), time.perf_counter()
    cores = await _cores_used(scene.epp.pid, scale.idle_s)
    scrapes = await scene.epp.scrapes_total() - scrapes_before
    return IdleRun(
        endpoints=endpoints,
        cores=cores,
        scrapes_per_s=scrapes / (time.perf_counter() - began_s),
        rss_mib=resting_mib,
    )


async def _cores_used(pid: int, watch_s: float) -> float:
    before_s, began_s = cpu_s(pid), time.perf_counter()
    await asyncio.sleep(watch_s)
    return (cpu_s(pid) - before_s) / (time.perf_counter() - began_s)
