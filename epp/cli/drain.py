"""`epp drain`: the preStop hook of a model server.

It ends with 0 whatever happens, since the kubelet waits for nothing else and would report a failed hook instead of what went
wrong. Only --print-script, --advise and --help have the usual exit codes.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from epp.cli.drain_advice import advice_options, print_advice
from epp.cli.kind_type import KindType
from epp.config import kinds
from epp.drain.log import HookLog
from epp.drain.plan import DrainPlan
from epp.errors import ConfigError

if TYPE_CHECKING:
    from epp.cli.drain_page import ServerPage

DEFAULTS = DrainPlan(engine="", url="")
MOST_TOKEN_BYTES = 4096
_REPORTS = ("--print-script", "--advise", "--help", "-h")
_ADVICE = ("slowest_request_s", "grace_s", "pre_stop", "shutdown_timeout_s", "output_format")
_DURATION = KindType(kinds.DURATION)
_SOME_TIME = KindType(kinds.duration(minimum_s=0.05))
_COUNT = KindType(kinds.COUNT)


class _HookCommand(click.Command):
    """A command whose wrong usage is told in the log and ends, after the minimum wait, with 0."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = list(args)
        if any(word.partition("=")[0] in _REPORTS for word in words):
            return super().make_context(info_name, args, parent, **extra)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            _wait_after(error.format_message(), words)
        raise click.exceptions.Exit(0)


def _seconds(
    flag: str, name: str, sentence: str, kind: KindType = _DURATION
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    default = getattr(DEFAULTS, name)
    return click.option(flag, name, type=kind, default=f"{default:g}s", show_default=True, help=sentence)


@click.command("drain", cls=_HookCommand, short_help="Wait, as preStop hook, until a model server is idle.")
@click.option(
    "--engine", help="The engine, which says where its load can be read. Without it only the endpoint pickers' counts are."
)
@click.option("--url", help="The model server.  [default: http://127.0.0.1 with the engine's port]")
@click.option(
    "--metrics-url",
    help="Where its metrics are, with a path for one page only.  [default: --url, on the engine's port for metrics]",
)
@click.option("--waiting-metric", help="Selector of waiting requests, such as 'my_queue{state=\"waiting\"}', for any engine.")
@click.option("--running-metric", help="Selector of running requests.")
@click.option(
    "--epp-url",
    "picker_urls",
    multiple=True,
    help="Admin port of an endpoint picker, such as http://my-pool-epp:9090; may be repeated.",
)
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    help="ip:port of this server; may be repeated.  [default: $POD_IP or own address, with the port of --url]",
)
@click.option(
    "--epp-token-file", "token_file", help="File with the admin token; without it only this pod's own address may be drained."
)
@_seconds("--min-wait", "min_wait_s", "Wait at least so long: routers need time to see that the endpoint drains.")
@_seconds("--max-wait", "max_wait_s", "Wait at most so long.")
@_seconds("--interval", "interval_s", "Pause between samples.", _SOME_TIME)
@click.option(
    "--idle-samples",
    type=_COUNT,
    default=DEFAULTS.idle_samples,
    show_default=True,
    help="So many idle samples in a row end the wait.",
)
@_seconds(
    "--keep", "keep_s", "How long an endpoint picker remembers after the last call that this endpoint drains.", _SOME_TIME
)
@click.option(
    "--log-file",
    help="Where to write.  [default: the container's log, /proc/1/fd/1, if it may be written, else standard output]",
)
@click.option("--print-script", is_flag=True, help="Print the same as a POSIX sh script, for images without Python.")
@click.option(
    "--advise",
    "wants_advice",
    is_flag=True,
    help="Print the grace period, hook and engine flags that fit together; refuse what loses requests.",
)
@advice_options
@click.pass_context
def command(
    context: click.Context, /, *, engine: str | None, url: str | None, metrics_url: str | None, waiting_metric: str | None,
    running_metric: str | None, print_script: bool, wants_advice: bool, **given: Any,
) -> None:  # fmt: skip
    """Wait until a model server is idle, and end with 0.

    Tells the endpoint pickers that this server drains, so that they pick it no more, and waits until it is idle by their
    count and by the engine's own metrics. Run it as preStop hook; --advise says which times fit together.
    """
    advice = {name: given.pop(name) for name in _ADVICE}
    if wants_advice:
        if print_script:
            raise click.UsageError("--advise: expected it without --print-script, found both")
        waits = {name: given[name] for name in ("min_wait_s", "interval_s", "idle_samples")}
        own_max = given["max_wait_s"] if _is_given(context, "max_wait_s") else None
        raise SystemExit(print_advice(engine=engine, max_wait_s=own_max, **waits, **advice))
    words = sys.argv[1:]
    try:
        _refuse_advice_flags(context)
        from epp.cli.drain_page import page_plan, server_page

        page = server_page(engine, url, metrics_url, waiting_metric, running_metric)
        plan = _plan(engine, page, given, own_address=not print_script, plan_of_page=page_plan(page))
        if print_script:
            from epp.drain.script import render

            click.echo(render(plan, _words(context)), nl=False)
            return
    except ConfigError as error:
        if print_script:
            raise
        _wait_after(" ".join(error.problems), words)
        return
    _leave(_drain(plan, page))


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _refuse_advice_flags(context: click.Context) -> None:
    """Raises ConfigError: a flag for --advise was given without it."""
    flags = [each.opts[0] for each in context.command.params if each.name in _ADVICE and _is_given(context, each.name)]
    if flags:
        raise ConfigError(f"{', '.join(flags)}: expected --advise beside it, found none")


def _words(context: click.Context) -> tuple[str, ...]:
    """The flags as they were given, for the head of the script."""
    words = []
    for parameter in context.command.params:
        if parameter.name and _is_given(context, parameter.name):
            value = context.params[parameter.name]
            flag = parameter.opts[0]
            if value is True:
                words.append(flag)
            else:
                for each in value if parameter.multiple else [value]:
                    words += [flag, f"{each:g}s" if isinstance(each, float) else str(each)]
    return tuple(words)


def _plan(engine: str | None, page: "ServerPage", given: dict[str, Any], *, own_address: bool, plan_of_page: Any) -> DrainPlan:
    """Raises:
    ConfigError: Flags do not fit together.
    """
    from epp.cli.drain_page import picker_url
    from epp.pool.endpoint import endpoint_address

    picker_urls = tuple(picker_url(each) for each in given.pop("picker_urls"))
    endpoints = []
    for text in given.pop("endpoints"):
        ip, _, port = text.rpartition(":")
        if not port.isdecimal():
            raise ConfigError(f"--endpoint: expected ip:port, found {text!r}")
        endpoints.append(endpoint_address(ip, int(port)))
    if given["max_wait_s"] < given["min_wait_s"]:
        raise ConfigError(
            f"--max-wait: expected at least --min-wait ({given['min_wait_s']:g}s), found {given['max_wait_s']:g}s"
        )
    if not endpoints and own_address and picker_urls:
        endpoints.append(endpoint_address(_own_ip(), page.url.port or 80))
    name = page.engine.name if page.engine is not None else engine or "a model server"
    return DrainPlan(
        engine=name, url=str(page.url.origin()), page=plan_of_page, picker_urls=picker_urls, endpoints=tuple(endpoints), **given
    )


def _own_ip() -> str:
    """This pod's address: `POD_IP`, or the one that its way out has. Nothing is sent."""
    own = os.environ.get("POD_IP", "").strip()
    if own:
        return own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(out.getsockname()[0])


async def _wait(plan: DrainPlan, page: "ServerPage", log: HookLog) -> None:
    from contextlib import AsyncExitStack

    from epp.cli.drain_page import EnginePage
    from epp.clock import SystemClock
    from epp.drain.hook import DrainHook, Picker

    async with AsyncExitStack() as stack:
        pickers: list[Picker] = []
        if plan.picker_urls:
            import aiohttp

            from epp.drain.picker_calls import PickerCalls

            token = _token(plan.token_file, log)
            client = await stack.enter_async_context(aiohttp.ClientSession())
            pickers = [
                PickerCalls(client, url, endpoint, keep_s=plan.keep_s, token=token)
                for url in plan.picker_urls
                for endpoint in plan.endpoints
            ]
        reader = await stack.enter_async_context(EnginePage(page))
        await DrainHook(plan, pickers, reader, log.line, SystemClock()).run()


def _token(file: str | None, log: HookLog) -> str | None:
    """The admin token; None, and a line in the log, when it cannot be read."""
    if file is None:
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not hold the hook
        try:
            token = os.read(descriptor, MOST_TOKEN_BYTES + 1).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        log.line(
            f"--epp-token-file {file}: expected a token, found {getattr(error, 'strerror', None) or 'no text'}; goes on without"
        )
        return None
    if not token or len(token) > MOST_TOKEN_BYTES or not token.isprintable() or " " in token:
        log.line(
            f"--epp-token-file {file}: expected one word of at most {MOST_TOKEN_BYTES} letters, found none; goes on without"
        )
        return None
    return token


def _drain(plan: DrainPlan, page: "ServerPage") -> HookLog:
    """Wait; whatever goes wrong, at least `min_wait_s`."""
    log = HookLog(plan.log_file)
    began_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: _end_early(log))
    signal.signal(signal.SIGINT, lambda *_: _end_early(log))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        # Not asyncio.run: at its end it waits for threads, and a name that resolves slowly occupies one that nobody can end.
        asyncio.new_event_loop().run_until_complete(_wait(plan, page, log))
    except Exception as error:  # noqa: BLE001 - a bug must not keep the server from the minimum wait, nor fail the hook
        log.line(f"a bug of epp drain, which waits the minimum: {type(error).__name__}: {error}")
        time.sleep(max(0.0, plan.min_wait_s - (time.monotonic() - began_s)))
    return log


def _end_early(log: HookLog) -> None:
    log.line("ends early: told to by a signal")
    _leave(log)


def _leave(log: HookLog) -> None:
    """End the process with 0 at once, without waiting for threads."""
    log.close()
    sys.stdout.flush()
    os._exit(0)


def _wait_after(problem: str, words: Sequence[str]) -> None:
    """Say what is wrong with the flags, and wait the minimum."""
    log = HookLog(_value_of("--log-file", words))
    try:
        min_wait_s = kinds.DURATION.read(_value_of("--min-wait", words) or f"{DEFAULTS.min_wait_s:g}s")
    except ValueError:
        min_wait_s = DEFAULTS.min_wait_s
    signal.signal(signal.SIGTERM, lambda *_: _end_early(log))
    log.line(f"{problem}; only waits {min_wait_s:g} s")
    time.sleep(min_wait_s)
    _leave(log)


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    """The value of a flag among words that may be wrong elsewhere."""
    for index, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name == flag:
            return value if has_value else words[index + 1] if index + 1 < len(words) else None
    return None
