"""`python -m tests.rollout`: rolls a pool of each engine under load, with all that this project advises, and without parts.

Prints how many requests were lost (no answer) or cut (an answer that is not whole). Exit code 1 if the rollouts with all
three parts lost or cut any.
"""

import asyncio
import sys
from collections.abc import Collection, Iterable
from itertools import chain

import click

from epp.errors import EppError
from tests.rollout.engines import MANNERS
from tests.rollout.hooks import KINDS
from tests.rollout.practice import FULL, PARTS, QUICK, Pace, Practice
from tests.rollout.report import fault_lines, table_lines
from tests.rollout.scene import Rollout, roll_once

ALL, NOTHING = "all", "nothing"


@click.command(help=__doc__)
@click.option("--engine", "engines", multiple=True, type=click.Choice(list(MANNERS)), help="Only this one; may be repeated.")
@click.option(
    "--times", default=1, show_default=True, type=click.IntRange(min=1), help="Rollouts of each engine with all three."
)
@click.option(
    "--without", "contrasts", multiple=True, type=click.Choice([*PARTS, ALL, NOTHING]), default=[ALL], show_default=True,
    help="A column for rollouts without this part, once for each engine; may be repeated.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Answers of 6 s at most instead of 20 s, as the tests do.")
@click.option("--hook", "kinds", multiple=True, type=click.Choice(KINDS), help="Default: the command and the script in turn.")
@click.option("--at-once", default=3, show_default=True, type=click.IntRange(min=1), help="Rollouts side by side.")
def main(
    engines: Collection[str], times: int, contrasts: Collection[str], quick: bool, kinds: Collection[str], at_once: int
) -> None:
    practices = [Practice.without(PARTS if part == ALL else [part]) for part in contrasts if part != NOTHING]
    pace = QUICK if quick else FULL
    try:
        rollouts = asyncio.run(_run(list(engines or MANNERS), times, practices, pace, list(kinds or KINDS), at_once))
    except EppError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join(["", *table_lines(rollouts), "", *fault_lines(rollouts)]))
    sys.exit(1 if any(rollout.tally.failed for rollout in rollouts if rollout.practice.complete) else 0)


async def _run(
    engines: list[str], times: int, practices: Iterable[Practice], pace: Pace, kinds: list[str], at_once: int
) -> list[Rollout]:
    room = asyncio.Semaphore(at_once)

    async def run(number: int, engine: str, practice: Practice) -> Rollout:
        async with room:
            rollout = await roll_once(engine, practice, pace, hook_kind=kinds[number % len(kinds)], seed=number)
        click.echo(str(rollout))
        return rollout

    planned = chain(
        ((number, engine, Practice()) for number in range(times) for engine in engines),
        ((number, engine, practice) for number, practice in enumerate(practices) for engine in engines),
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(*each)) for each in planned]
    return [task.result() for task in tasks]


if __name__ == "__main__":
    main()
