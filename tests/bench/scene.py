"""Everything that a measurement needs, running: model servers, an endpoint picker, Envoy with it and Envoy without."""

import asyncio
import compileall
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from epp.envoy.process import EnvoyProcess
from tests.bench import envoys
from tests.bench.cases import LOAD_CASES, chat_body
from tests.bench.epp_process import RunningEpp, start_epp
from tests.bench.load import ROOT, Generator
from tests.bench.machine import BenchError, Cores

METRICS_PAGE = ROOT / "tests" / "scrape" / "expositions" / "vllm-0.32-real-busy.txt"
"""50 KB, from a real vLLM."""
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What stays the same for all measurements.

    Attributes:
        port: All model servers have this port, each an address 127.0.1.N.
        patient_port: The same servers, waiting for the body before they answer (see `envoys.upstream`).
        bodies: Files of request bodies, by length in bytes.
    """

    cores: Cores
    generator: Generator
    port: int
    patient_port: int
    bodies: dict[int, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pool, its endpoint picker, and two Envoys.

    Attributes:
        front: The Envoy that asks the endpoint picker; its CPU time is what the picker's is compared with.
        plain_port: Of an Envoy that takes the same endpoints in turn.
    """

    stage: Stage
    epp: RunningEpp
    front: EnvoyProcess
    front_port: int
    plain_port: int


@asynccontextmanager
async def start_stage(cores: Cores, generator: Generator) -> AsyncIterator[Stage]:
    """Model servers and bodies. Whatever is started inside belongs on `cores.others`, where this program must run."""
    # As an installed package is: else the first start would compile it, and with PYTHONDONTWRITEBYTECODE every one.
    compileall.compile_dir(ROOT / "epp", quiet=2)
    with tempfile.TemporaryDirectory(prefix="epp-bench-bodies-") as folder:
        bodies = {}
        for size_bytes in {case.body_bytes for case in LOAD_CASES}:
            bodies[size_bytes] = Path(folder) / f"{size_bytes}.json"
            bodies[size_bytes].write_bytes(chat_body(size_bytes))
        async with EnvoyProcess(envoys.upstream(METRICS_PAGE)) as upstream:
            port, patient = (upstream.listener(name).port for name in (envoys.UPSTREAM, envoys.PATIENT_UPSTREAM))
            yield Stage(cores=cores, generator=generator, port=port, patient_port=patient, bodies=bodies)


def start_picker(stage: Stage, endpoint_count: int, wrapper: Sequence[str] = ()) -> AbstractAsyncContextManager[RunningEpp]:
    """An endpoint picker with so many endpoints, on its core."""
    return start_epp(_endpoints(endpoint_count, stage.port), stage.cores.epp, wrapper)


@asynccontextmanager
async def start_scene(stage: Stage, endpoint_count: int, wrapper: Sequence[str] = ()) -> AsyncIterator[Scene]:
    """An endpoint picker with so many endpoints and its Envoys, after a request that went well and some time to settle."""
    async with (
        start_picker(stage, endpoint_count, wrapper) as epp,
        EnvoyProcess(envoys.front(epp.grpc_port)) as front,
        EnvoyProcess(envoys.plain(_endpoints(endpoint_count, stage.patient_port))) as plain,
    ):
        ports = front.listener(envoys.FRONT).port, plain.listener(envoys.FRONT).port
        for port in ports:
            await _check(port)
        await asyncio.sleep(_SETTLE_S)
        yield Scene(stage=stage, epp=epp, front=front, front_port=ports[0], plain_port=ports[1])


def _endpoints(count: int, port: int) -> list[tuple[str, int]]:
    return [(f"127.0.1.{number}", port) for number in range(1, count + 1)]


async def _check(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, data=chat_body(500)) as response:
        answer = await response.text()
    if response.status != 200:
        raise BenchError(f"the first request: expected 200, found {response.status}: {answer[:500]}")
