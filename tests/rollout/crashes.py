"""`python -m tests.rollout.crashes`: kills model servers and endpoint pickers under load; prints what that did to requests."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

import click

from epp.errors import EppError
from tests.bench.table import columns
from tests.flows.harness import EppProcess, wait_until
from tests.rollout.crash_scene import CrashScene, first_picks, send_slow, start_crash_scene
from tests.rollout.load import Failure, Load
from tests.rollout.tally import Ending, Tally

RETRIED = "cluster.model_servers.upstream_rq_retry_success"
HUNG = "TimeoutError"


@dataclass(frozen=True, slots=True)
class AfterLoss:
    """The load after a model server was lost.

    Attributes:
        picks: How often it was named first, of at least twenty picks after the picker knew.
        retried_requests: Requests that Envoy sent to another server with success.
    """

    picks: int
    retried_requests: int


@dataclass(frozen=True, slots=True)
class Crash:
    """What a crash did.

    Attributes:
        name: What crashed.
        tally: What became of the requests.
        beyond: Failures that this project promises to avoid; none if all is well.
        facts: What was measured, one phrase each.
        after: Of a lost model server.
    """

    name: str
    tally: Tally
    beyond: tuple[Failure, ...]
    facts: tuple[str, ...]
    after: AfterLoss | None = None


async def server_killed() -> Crash:
    """SIGKILL of one of three model servers, which gives answers and has not begun others."""
    async with start_crash_scene() as scene:
        dead = scene.pods[0]
        async with scene.load() as load:
            slow = await _until_at_work(scene, load, dead.name, str(dead.address))
            await dead.crash()
            after = await _after_the_loss(scene, load, dead.name, str(dead.address), slow)
    return _lost_server("a model server is killed", load, dead.name, after)


async def network_cut() -> Crash:
    """One of three model servers works on and cannot be reached: its connections are reset, new ones refused."""
    async with start_crash_scene() as scene:
        server = scene.near
        async with scene.load() as load:
            slow = await _until_at_work(scene, load, server.name, server.address)
            server.close_listeners()
            server.cut_connections()
            after = await _after_the_loss(scene, load, server.name, server.address, slow)
            await server.reopen_listeners()
            await load.until_streams(server.name, left_s=0.0)  # it has its share again
    return _lost_server("a model server cannot be reached", load, server.name, after)


async def _until_at_work(scene: CrashScene, load: Load, name: str, address: str) -> list[asyncio.Task[Ending]]:
    """It gives answers, and has a slow request, whose answer has not begun; the slow requests."""
    await load.until_streams(name, left_s=2.0)
    return await send_slow(load, scene.pickers[0], address)


async def _after_the_loss(
    scene: CrashScene, load: Load, name: str, address: str, slow: Iterable[asyncio.Task[Ending]]
) -> AfterLoss:
    """Wait until a lost server is avoided, and for some load without it."""
    (picker,) = scene.pickers
    await wait_until(lambda: not load.streams_of(name), "every answer of the lost server to end")

    async def is_avoided() -> bool:
        return bool((await picker.pool())[address]["demoted_because"])

    await wait_until(is_avoided, "the picker to avoid the lost server")
    before = await first_picks(picker, address)
    await load.more(20)
    later = await first_picks(picker, address) - before
    await asyncio.gather(*slow)
    retried = (await scene.envoy.stats(RETRIED)).get(RETRIED, 0)
    return AfterLoss(picks=later, retried_requests=retried)


def _lost_server(what: str, load: Load, name: str, after: AfterLoss) -> Crash:
    beyond = tuple(each for each in load.failures if each.ending is Ending.LOST or each.server != name or each.seen == HUNG)
    facts = (
        f"{len(load.failures) - len(beyond)} answers that it had begun were cut",
        f"{after.retried_requests} requests were answered after a retry",
        f"{after.picks} picks once it was avoided",
    )
    return Crash(what, load.tally, beyond, facts, after)


async def only_picker_killed() -> Crash:
    """SIGKILL of the only endpoint picker, and its restart: requests go on without it, and its counts come back."""
    async with start_crash_scene() as scene:
        (picker,) = scene.pickers
        port = picker.grpc.port
        async with scene.load() as load:
            for name in scene.server_names:
                await load.until_streams(name, left_s=2.0)
            killed_at_s = time.monotonic()
            await picker.kill()
            await scene.until_pickers_healthy(0)
            noticed_at_s = time.monotonic()
            await load.more(20)  # by Envoy alone
            restarted = await scene.start_picker(port)
            known = await _until_counts_are_back(load, restarted)
            await scene.until_pickers_healthy(1)

            async def has_picked() -> bool:
                return bool(await restarted.metric("llm_d_epp_request_total"))

            await wait_until(has_picked, "the new picker to be asked")
            await load.more(10)
    window = [failure.failed_at_s for failure in load.failures]
    facts = (
        f"requests failed for {max(window, default=killed_at_s) - killed_at_s:.2f} s",
        f"Envoy noticed after {noticed_at_s - killed_at_s:.2f} s",
        f"the new picker saw {known} running requests that it had not picked",
    )
    beyond = tuple(failure for failure in load.failures if failure.sent_at_s > noticed_at_s)
    return Crash("the only picker is killed", load.tally, beyond, facts)


async def one_of_two_pickers_killed() -> Crash:
    """SIGKILL of one of two endpoint pickers: nothing fails but what had a stream to it."""
    async with start_crash_scene(pickers=2) as scene:
        dead, other = scene.pickers
        async with scene.load() as load:

            async def have_picked() -> bool:
                return all([await picker.in_flight() for picker in (dead, other)])

            await wait_until(have_picked, "both pickers to have requests in flight")
            open_streams = await dead.in_flight()
            await dead.kill()
            killed_at_s = time.monotonic()
            await scene.until_pickers_healthy(1)
            await load.more(20)
    beyond = tuple(failure for failure in load.failures if failure.sent_at_s > killed_at_s)
    facts = (f"{open_streams} streams were open at the killed one",)
    return Crash("one of two pickers is killed", load.tally, beyond, facts)


async def _until_counts_are_back(load: Load, picker: EppProcess) -> int:
    """Wait until a new picker sees in metrics the answers that are being given and that it did not pick; how many."""
    seen = 0

    async def are_seen() -> bool:
        nonlocal seen
        begun = len(load.streams)
        endpoints = (await picker.pool()).values()
        seen = sum(endpoint["running_requests"] or 0 for endpoint in endpoints)
        return 0 < begun <= seen and not any(endpoint["in_flight_requests"] for endpoint in endpoints)

    await wait_until(are_seen, "the new picker to see what runs")
    return seen


CRASHES: dict[str, Callable[[], Awaitable[Crash]]] = {
    "server": server_killed,
    "network": network_cut,
    "only-picker": only_picker_killed,
    "one-of-two-pickers": one_of_two_pickers_killed,
}


@click.command(help=__doc__)
@click.option("--crash", "names", multiple=True, type=click.Choice(list(CRASHES)), help="Only this one; may be repeated.")
def main(names: Collection[str]) -> None:
    try:
        crashes = asyncio.run(_run(names or CRASHES))
    except EppError as error:
        raise click.ClickException(str(error)) from error
    rows = [
        (crash.name, *map(str, (crash.tally.sent, crash.tally.lost, crash.tally.cut)), "; ".join(crash.facts))
        for crash in crashes
    ]
    click.echo("\n".join(["", *columns([("crash", "requests", "lost", "cut", "measured"), *rows])]))
    for crash in crashes:
        for failure in crash.beyond:
            click.echo(f"{crash.name}: expected no such failure, found {failure}", err=True)
    sys.exit(1 if any(crash.beyond for crash in crashes) else 0)


async def _run(names: Iterable[str]) -> list[Crash]:
    crashes = []
    for name in names:
        crashes.append(await CRASHES[name]())
        click.echo(f"{crashes[-1].name}: {crashes[-1].tally}")
    return crashes


if __name__ == "__main__":
    main()
