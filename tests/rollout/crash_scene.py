"""Model servers, endpoint pickers and a real Envoy that can each be killed under load."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec

from epp.envoy.process import EnvoyProcess
from epp.sim.config import SimConfig
from epp.sim.server import SimServer
from tests.flows.harness import PATIENCE_S, EppProcess, start_envoy, wait_until
from tests.kubernetes.server_process import unused_port
from tests.rollout.asks import MODEL, TOKENS_PER_S, plan_asks
from tests.rollout.engines import MANNERS
from tests.rollout.load import Load
from tests.rollout.pod import Pod
from tests.rollout.practice import QUICK
from tests.rollout.scene import pod_arguments

ENGINE = "llamacpp"
"""Its answers have no byte before the first token, so that a request that waits in its queue has no answer yet."""
PACE = replace(QUICK, largest_prompt_bytes=20_000)  # larger than what Envoy keeps for a retry would be another question
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
async def start_crash_scene(*, pickers: int = 1, slots: int = 64) -> AsyncIterator[CrashScene]:
    """Three model servers that work on `slots` requests at once, and so many endpoint pickers that know them."""
    async with AsyncExitStack() as stack:
        arguments = [*pod_arguments(ENGINE), "--slots", str(slots)]
        pods = [Pod(f"{ENGINE}-{number}", arguments, probe=MANNERS[ENGINE].probe) for number in range(PACE.pods - 1)]
        near = await stack.enter_async_context(SimServer(near_config(slots)))
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


def near_config(slots: int) -> SimConfig:
    """The server in this process, like the others."""
    return SimConfig(
        engine=ENGINE, name="near", slots=slots, kv_blocks=100_000, prefill_tokens_per_s=1e6, decode_tokens_per_s=TOKENS_PER_S,
        served_model_names=(MODEL,), stream_interval_s=0.1,
    )  # fmt: skip


async def until_waiting(picker: EppProcess, address: str, count: int) -> None:
    """Wait until so many requests wait in the queue of a model server."""

    async def are_waiting() -> bool:
        return (await picker.number(address, "waiting_requests") or 0) >= count

    await wait_until(are_waiting, f"{count} requests in the queue of {address}", 4 * PATIENCE_S)


async def first_picks(picker: EppProcess, address: str) -> int:
    """How many of the last thousand picks named this endpoint first."""
    _, page = await picker.get("/api/v1/picks?limit=1000")
    return sum(pick["endpoints"][:1] == [address] for pick in msgspec.json.decode(page)["picks"])
