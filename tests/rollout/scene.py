"""A pool of one engine behind real Envoy, an endpoint picker and steady load; and one rollout of it."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from tests.flows.harness import EppProcess, start_envoy, wait_until
from tests.kubernetes.cluster import RealCluster
from tests.rollout.asks import MODEL, TOKENS_PER_S, plan_asks
from tests.rollout.deployment import Deployment
from tests.rollout.engines import MANNERS
from tests.rollout.hooks import COMMAND, DrainHook, no_hook
from tests.rollout.load import Load
from tests.rollout.membership import ClusterMembership, FileMembership, Membership
from tests.rollout.pod import Pod, PodEnd
from tests.rollout.practice import Pace, Practice
from tests.rollout.tally import Tally

# Nothing waits for the engine: what is slow is the rate of tokens.
_ROOM = ("--slots", "64", "--kv-blocks", "100000", "--prefill-rate", "1e6", "--stream-interval", "100ms")


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one rollout did.

    Attributes:
        ends: How the old pods ended, by name.
        errors: What the picker logged as errors.
    """

    engine: str
    practice: Practice
    tally: Tally
    ends: dict[str, PodEnd]
    errors: list[dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.engine}, {self.practice}: {self.tally}"


def pod_arguments(engine: str, *, good_flags: bool = True) -> list[str]:
    """What follows `epp sim` for a pod of this engine."""
    manners = MANNERS[engine]
    flags = manners.good_flags if good_flags else manners.bad_flags
    rates = ("--decode-rate", f"{TOKENS_PER_S:g}", "--served-model-name", MODEL)
    return ["--engine", engine, *_ROOM, *rates, *flags]


async def roll_once(
    engine: str,
    practice: Practice,
    pace: Pace,
    *,
    hook_kind: str = COMMAND,
    seed: int = 0,
    cluster: RealCluster | None = None,
) -> Rollout:
    """Roll a pool under load, and say what became of the requests.

    Args:
        hook_kind: One of `hooks.KINDS`.
        seed: Of the requests.
        cluster: Where the picker finds the pods; None: in an endpoints file.
    """
    async with (
        start_pool(engine, practice, pace, hook_kind=hook_kind, cluster=cluster) as (deployment, epp, url),
        Load(url, plan_asks(seed, pace), rate_per_s=pace.rate_per_s) as load,
    ):
        await load.more(5)
        # So that each pod is told to end in the middle of an answer.
        await deployment.roll(lambda pod: load.until_streams(pod.name, left_s=pace.in_flight_s))
        await load.more(5)
    return Rollout(engine, practice, load.tally, deployment.ends, epp.log_records("error"))


@asynccontextmanager
async def start_pool(
    engine: str,
    practice: Practice,
    pace: Pace,
    *,
    hook_kind: str = COMMAND,
    cluster: RealCluster | None = None,
    pod_maker: Callable[[int], Pod] | None = None,
    adapt: Callable[[Bootstrap], None] | None = None,
) -> AsyncIterator[tuple[Deployment, EppProcess, str]]:
    """The pods, the picker, and where Envoy listens.

    Args:
        pod_maker: Makes the pods, by number; None: they are simulated servers.
        adapt: May change Envoy's configuration.
    """
    with tempfile.TemporaryDirectory(prefix="epp-rollout-") as name:
        folder = Path(name)
        members = await _membership(folder, engine, practice, pace, cluster)
        async with EppProcess(*members.picker_arguments()) as epp:
            hook = DrainHook(
                engine=engine,
                kind=hook_kind,
                epp_url=f"http://{epp.metrics}" if practice.first_sight else None,
                min_wait_s=pace.min_wait_s,
                max_wait_s=pace.max_wait_for(practice),
                folder=folder,
                token_file=members.token_file,
            )

            def make_pod(number: int) -> Pod:
                arguments = pod_arguments(engine, good_flags=practice.good_flags)
                host, port = members.place(number)
                return Pod(f"{engine}-{number}", arguments, probe=MANNERS[engine].probe, host=host, port=port)

            grace_s = pace.grace_for(practice)
            async with Deployment(
                pod_maker or make_pod, members, hook=hook if practice.hook else no_hook, grace_s=grace_s
            ) as deployment:
                await deployment.scale_up(pace.pods)
                await _until_ready(epp, deployment)
                async with start_envoy(epp.grpc.port, original_dst=False, adapt=adapt) as envoy:
                    yield deployment, epp, f"http://{envoy.listener()}"


async def _membership(folder: Path, engine: str, practice: Practice, pace: Pace, cluster: RealCluster | None) -> Membership:
    if cluster is None:
        return FileMembership(folder, engine, practice, pace)
    members = ClusterMembership(cluster, folder, engine, pace)
    await members.create_pool()
    return members


async def _until_ready(epp: EppProcess, deployment: Deployment) -> None:
    """Wait until the picker knows the pods of the deployment as ready."""

    async def are_ready() -> bool:
        pool = await epp.pool()
        return all(pool.get(str(pod.address), {}).get("state") == "ready" for pod in deployment.pods)

    await wait_until(are_ready, "every pod to be ready for the picker")
