"""`python -m tests.bench`: measures the endpoint picker beside the real Envoy; prints a table, writes JSON."""

import asyncio
import datetime
import os
import signal
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

import click
import msgspec
import pytest

from epp.errors import EppError
from tests.bench import cases, machine
from tests.bench.cases import CASE_NAMES, LOAD_CASES, LOAD_ENDPOINTS, MANY_ENDPOINTS, Scale
from tests.bench.load import ROOT, Generator
from tests.bench.machine import rss_mib
from tests.bench.parts import measure_parts
from tests.bench.pod_changes import measure_deletions, measure_lists
from tests.bench.profiling import profile
from tests.bench.results import Results
from tests.bench.scene import Stage, start_scene, start_stage
from tests.bench.table import figure_lines
from tests.bench.through_envoy import measure_idle, measure_load, measure_starts
from tests.kubernetes.cluster import RealCluster


@click.command(help=__doc__)
@click.option("--case", "names", multiple=True, type=click.Choice(CASE_NAMES), help="Only this one; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each load case is run; default 2, with --quick 1.")
@click.option("--quick", is_flag=True, help="About a minute: fewer requests, shorter waits, larger errors.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default bench-results/<time>.json.")
@click.option("--load", "generator", type=click.Choice(["hey", "own"]), help="Default hey if it is on the PATH.")
@click.option("--profile", "profiled", type=click.Choice([case.name for case in LOAD_CASES]), help="Profile instead.")
def main(
    names: Collection[str], rounds: int | None, quick: bool, file: Path | None, generator: str | None, profiled: str | None
) -> None:
    scale = cases.QUICK if quick else cases.FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    try:
        sys.exit(asyncio.run(_run(set(names or CASE_NAMES), scale, file, Generator.found(generator), profiled)))
    except EppError as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise click.ClickException("interrupted; every process that was started has ended") from None


async def _run(names: set[str], scale: Scale, file: Path | None, generator: Generator, profiled: str | None) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    where = machine.cores()
    with machine.on_core(where.others):
        _say_where(where, generator)
        if profiled is not None:
            case = next(case for case in LOAD_CASES if case.name == profiled)
            async with start_stage(where, generator) as stage:
                click.echo("\n".join(await profile(stage, case)))
            return 0
        began = datetime.datetime.now(datetime.UTC)
        about = {"date": began.isoformat(timespec="seconds"), "generator": generator.name, "cores_apart": where.apart}
        about |= {"machine": machine.description(), "scale": asdict(scale)}
        results = await _measure(names, scale, where, generator)
    click.echo("\n".join(["", *figure_lines(results.figures()), ""]))
    _write({**about, **results.as_json()}, file or ROOT / "bench-results" / f"{began:%Y-%m-%dT%H-%M-%SZ}.json")
    for reason, count in results.failed.items():
        click.echo(f"failed requests: {reason}: {count}; the figures of this case are not to be trusted", err=True)
    return 1 if results.failed else 0


async def _measure(names: set[str], scale: Scale, where: machine.Cores, generator: Generator) -> Results:
    results = Results()
    if cases.PARTS in names:
        click.echo("parts, in this process …")
        for part in measure_parts(scale.part_s):
            results.parts.append(part)
            await asyncio.sleep(0)  # lets an interruption in
    if cases.KUBERNETES in names:
        await _measure_pod_changes(results, scale, where)
    if names - {cases.PARTS, cases.KUBERNETES}:
        async with start_stage(where, generator) as stage:
            await _measure_few(results, names, scale, stage)
            await _measure_many(results, names, scale, stage)
    return results


async def _measure_few(results: Results, names: set[str], scale: Scale, stage: Stage) -> None:
    wanted = [case for case in LOAD_CASES if case.name in names and case.endpoints == LOAD_ENDPOINTS]
    if not wanted:
        return
    async with start_scene(stage, LOAD_ENDPOINTS) as scene:
        results.rest_mib = rss_mib(scene.epp.pid)
        for number in range(1, scale.rounds + 1):
            for case in wanted:
                click.echo(f"{case.name}, {LOAD_ENDPOINTS} endpoints, round {number} of {scale.rounds} …")
                results.loads.append(await measure_load(scene, case, scale))
            results.round_end_mib.append(rss_mib(scene.epp.pid))


async def _measure_many(results: Results, names: set[str], scale: Scale, stage: Stage) -> None:
    wanted = [case for case in LOAD_CASES if case.name in names and case.endpoints == MANY_ENDPOINTS]
    if not wanted and cases.IDLE not in names:
        return
    if cases.IDLE in names:
        click.echo(f"starts, {MANY_ENDPOINTS} endpoints …")
        results.starts_s += await measure_starts(stage, MANY_ENDPOINTS)
    async with start_scene(stage, MANY_ENDPOINTS) as scene:
        if cases.IDLE in names:
            click.echo(f"idle, {MANY_ENDPOINTS} endpoints …")
            results.idle = await measure_idle(scene, MANY_ENDPOINTS, scale)
        for case in wanted:
            for number in range(1, scale.rounds + 1):
                click.echo(f"{case.name}, round {number} of {scale.rounds} …")
                results.loads.append(await measure_load(scene, case, scale))


async def _measure_pod_changes(results: Results, scale: Scale, where: machine.Cores) -> None:
    """With a real API server; left out where that cannot be had."""
    try:
        cluster = RealCluster()
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        click.echo(f"{cases.KUBERNETES}: left out; {reason}")
        return
    async with cluster:
        for pods in cases.DELETION_PODS:
            click.echo(f"{cases.KUBERNETES}: {scale.deletions} deletions, {pods} pods …")
            async with RealCluster(cluster.control_plane) as own:
                results.deletions.append(await measure_deletions(own, where.epp, pods, scale.deletions))
        click.echo(f"{cases.KUBERNETES}: {scale.lists} lists, {cases.LIST_PODS} pods …")
        async with RealCluster(cluster.control_plane) as own:
            results.lists.append(await measure_lists(own, where.epp, cases.LIST_PODS, scale.lists))


def _say_where(where: machine.Cores, generator: Generator) -> None:
    if where.apart:
        click.echo(f"EPP on core {where.epp}, everything else on core {where.others}; load by {generator.name}")
    else:
        click.echo(f"one core only ({where.epp}): the EPP and all others share it; rates and times are worse for it")
    one, five, _ = os.getloadavg()
    click.echo(f"load average before: {one:.2f} {five:.2f}")


def _write(record: dict[str, object], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    click.echo(f"written to {file}")


if __name__ == "__main__":
    main()
