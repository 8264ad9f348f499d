"""The command `epp`. Each subcommand is one file here, imported only when it is asked for."""

import importlib
import signal
import sys

import click

from epp.errors import ConfigError, EppError

COMMANDS = {
    "serve": "serve",
    "sim": "sim",
    "demo": "demo",
    "check-config": "check_config",
    "envoy-config": "envoy_config",
    "drain": "drain",
}
"""Name of each subcommand → its module."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed: `epp serve` starts without the simulator's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(f"epp.cli.{module}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="inference-epp", prog_name="epp")
def group() -> None:
    """An endpoint picker: Envoy asks which model server should take a request, and this names the least loaded one."""


def main() -> None:
    """Exit code 0: fine; 1: failure at run time; 2: wrong usage or configuration."""
    if sys.argv[1:2] == ["serve"]:
        # Until `epp serve` listens to signals itself. The first process of a container would else not even hear SIGTERM, and
        # go on as if nothing had been said.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
    try:
        group(prog_name="epp")
    except ConfigError as error:
        for problem in error.problems:
            print(f"epp: {problem}", file=sys.stderr)
        sys.exit(2)
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        sys.exit(1)
