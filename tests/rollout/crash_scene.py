"""Model servers, endpoint pickers and a real Envoy that can each be killed under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from epp.envoy.process import EnvoyProcess
from epp.sim.config import SimConfig
from epp.sim.server import SimServer
from tests.flows.harness import PATIENCE_S, EppProcess, start_envoy, wait_until
from tests.kubernetes.server_process import unused_port
from tests.rollout.asks import MODEL, TOKENS_PER_S, Ask, plan_asks
from tests.rollout.engines import MANNERS
from tests.rollout.load import Load
from tests.rollout.pod import Pod
from tests.rollout.practice import QUICK
from tests.rollout.scene import pod_arguments
from tests.rollout.tally import Ending

ENGINE = "llamacpp"
"""Its answers have no byte before the first token, so that a request whose prompt is being read has no answer yet."""
PREFILL_TOKENS_PER_S = 1000.0
PACE = replace(QUICK, largest_prompt_bytes=4_000)
SLOW = Ask(24_000, 10, model="slow")
"""Its answer begins after six seconds, and it is known by its model in the list of picks."""
_EPP_HEALTHY = "cluster.endpoint_picker.membership_healthy"


@dataclass(slots=True)
class CrashScene:
    """What can crash.

    Attributes:
        pods: The model servers that are processes.
        near: One in this process, whose network can be cut.
        pickers: The endpoint pickers.
    """

    pods: list[Pod]
    near: SimServer
    pickers: list[EppProcess]
    _stack: AsyncExitStack
    envoy: EnvoyProcess = field(init=False)

    @property
    def server_names(self) -> list[str]:
        """What the model servers call themselves."""
        return [self.near.name, *(pod.name for pod in self.pods)]

    @asynccontextmanager
    async def load(self, seed: int = 0) -> AsyncIterator[Load]:
        """Steady load, which has begun to be answered."""
        async with Load(f"http://{self.envoy.listener()}", plan_asks(seed, PACE), rate_per_s=PACE.rate_per_s) as load:
            await load.more(5)
            yield load

    async def until_pickers_healthy(self, count: int) -> None:
        """Wait until Envoy takes so many of the pickers for healthy."""

        async def are_healthy() -> bool:
            return (await self.envoy.stats(_EPP_HEALTHY)).get(_EPP_HEALTHY) == count

        await wait_until(are_healthy, f"Envoy to find {count} pickers healthy")

    async def start_picker(self, port: int) -> EppProcess:
        """A picker of all the pods on this gRPC port."""
        addresses = [self.near.address, *(str(pod.address) for pod in self.pods)]
        endpoints = [word for address in addresses for word in ("--endpoint", address)]
        return await self._stack.enter_async_context(EppProcess(*endpoints, "--grpc-port", str(port)))


@asynccontextmanager
async def start_crash_scene(*, pickers: int = 1) -> AsyncIterator[CrashScene]:
    """Three model servers, and so many endpoint pickers that know them."""
    async with AsyncExitStack() as stack:
        arguments = [*pod_arguments(ENGINE), "--prefill-rate", str(PREFILL_TOKENS_PER_S)]
        pods = [Pod(f"{ENGINE}-{number}", arguments, probe=MANNERS[ENGINE].probe) for number in range(PACE.pods - 1)]
        near = await stack.enter_async_context(SimServer(near_config()))
        for pod in pods:
            await stack.enter_async_context(pod)
        for pod in pods:
            await pod.until_ready()
        ports = [unused_port() for _ in range(pickers)]
        # Envoy waits for the first list of endpoints, so the pickers come first.
        scene = CrashScene(pods, near, [], stack)
        for port in ports:
            scene.pickers.append(await scene.start_picker(port))
        scene.envoy = await stack.enter_async_context(start_envoy(*ports, original_dst=False))
        await scene.until_pickers_healthy(pickers)
        yield scene


def near_config() -> SimConfig:
    """The server in this process, like the others."""
    return SimConfig(
        engine=ENGINE,
        name="near",
        slots=64,
        kv_blocks=100_000,
        prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
        decode_tokens_per_s=TOKENS_PER_S,
        served_model_names=(MODEL,),
        stream_interval_s=0.1,
    )


async def send_slow(load: Load, picker: EppProcess, address: str) -> list[asyncio.Task[Ending]]:
    """Send slow requests one after another until one has been picked for this server; it has no answer for some seconds."""
    sent: list[asyncio.Task[Ending]] = []
    picked: list[str] = []

    async def is_picked() -> bool:
        picked[:] = [pick["endpoints"][0] for pick in await picks(picker) if pick["model"] == SLOW.model]
        return len(picked) == len(sent)

    while address not in picked:
        sent.append(asyncio.create_task(load.send(replace(SLOW, number=10**6 + len(sent)))))
        await wait_until(is_picked, f"a pick for slow request {len(sent)}", 4 * PATIENCE_S)
    return sent


async def picks(picker: EppProcess) -> list[dict[str, Any]]:
    """The last thousand decisions."""
    _, page = await picker.get("/api/v1/picks?limit=1000")
    made: list[dict[str, Any]] = msgspec.json.decode(page)["picks"]
    return made


async def first_picks(picker: EppProcess, address: str) -> int:
    """How many of them named this server first."""
    return sum(pick["endpoints"][:1] == [address] for pick in await picks(picker))
