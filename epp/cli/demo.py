"""`epp demo`: everything on one machine, without a cluster."""

import asyncio
import os
import shutil
import sys

import click

from epp.clock import SystemClock
from epp.demo.progress import LiveScreen, PlainScreen, Screen
from epp.demo.show import Choices, Show

SHORTEST_S = 12
LONGEST_S = 3600
SMALLEST_TERMINAL = os.terminal_size((60, 16))
"""Columns and lines that a live table needs."""


@click.command("demo", short_help="Show everything on one machine: real Envoy, simulated model servers, a drain, a crash.")
@click.option(
    "--seconds",
    type=click.IntRange(min=SHORTEST_S, max=LONGEST_S),
    default=30,
    show_default=True,
    metavar="N",
    help="Length of the whole demo in seconds.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N", help="Source of the requests, their times, and the answers."
)
@click.option("--keep", is_flag=True, help="Leave everything running after the report, with traffic, until Ctrl-C.")
def command(seconds: int, seed: int, keep: bool) -> None:
    """Show the endpoint picker at work, without a cluster.

    Starts a real Envoy, the endpoint picker and six simulated model servers of five engines on free ports, and sends
    steady traffic through Envoy. Meanwhile one server is drained and stopped, and another one is killed and started
    again. Ends with a table; the exit code is 0 only if nothing was lost to the drain and every request got an answer
    or a clean error.
    """
    show = Show(Choices(total_s=seconds, seed=seed, keep=keep), screen=_screen(), write=click.echo, clock=SystemClock())
    sys.exit(0 if asyncio.run(show.run()) else 1)


def _screen() -> Screen:
    """A live table where there is a terminal that can show one."""
    size = shutil.get_terminal_size()
    large = size.columns >= SMALLEST_TERMINAL.columns and size.lines >= SMALLEST_TERMINAL.lines
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and large:
        return LiveScreen(_write, lambda: shutil.get_terminal_size().columns)
    return PlainScreen(_write)


def _write(text: str) -> None:
    click.echo(text, nl=False)
