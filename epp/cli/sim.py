"""`epp sim`: one simulated model server."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from epp.cli.kind_type import KindType
from epp.config import kinds
from epp.errors import ConfigError
from epp.sim.config import SimConfig
from epp.sim.engines.names import ENGINE_SETTINGS
from epp.sim.server import SimServer

DEFAULTS = SimConfig()
_DURATION = KindType(kinds.DURATION)
_PORT = KindType(kinds.PORT)


def _option(flag: str, name: str, text: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option for the `SimConfig` field `name`, with that field's default."""
    settings.setdefault("default", getattr(DEFAULTS, name))
    settings.setdefault("show_default", settings["default"] is not None)
    return click.option(flag, name, help=text, **settings)


def _seconds(flag: str, name: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    default = getattr(DEFAULTS, name)
    shown = f"{default:g}s" if default is not None else False
    return _option(flag, name, text, type=_DURATION, show_default=shown)


@click.command("sim", short_help="Run one simulated model server.")
@_option(
    "--engine",
    "engine",
    "The engine whose API, metrics, health and shutdown to imitate.",
    type=click.Choice(list(ENGINE_SETTINGS)),
)
@_option("--name", "name", "Sent with every answer as header x-sim-name; default ENGINE-PORT.", show_default=False)
@_option("--host", "host", "Address to bind.")
@_option("--port", "port", "Port to bind; 0 takes a free one. It is printed as `listening on http://HOST:PORT`.", type=_PORT)
@_option(
    "--metrics-port",
    "metrics_port",
    "Serve the metrics page on this port instead; 0 takes a free one. Default the API's port.",
    type=_PORT,
)
@_option("--metrics-path", "metrics_path", "Path of the metrics page. Default the engine's own.", type=str)
@_option("--slots", "slots", "Requests in execution at once.", type=int)
@_option(
    "--max-queue",
    "max_queue_requests",
    "Requests that may wait; more are refused in the engine's manner. Default no limit.",
    type=int,
)
@_option("--prefill-rate", "prefill_tokens_per_s", "Prompt tokens a second, for each request.", type=float)
@_option("--decode-rate", "decode_tokens_per_s", "Answer tokens a second, for each request.", type=float)
@_option("--kv-blocks", "kv_blocks", "Blocks of the KV cache.", type=int)
@_option("--kv-block-tokens", "kv_block_tokens", "Tokens in a block.", type=int)
@_option(
    "--prefix-caching/--no-prefix-caching", "prefix_caching", "Use beginnings of prompts that are still in the KV cache again."
)
@_option("--seed", "seed", "Source of answers, their lengths, and ids.", type=int)
@_option(
    "--served-model-name",
    "served_model_names",
    "A name the model answers to; may be repeated, the first is in the metrics.",
    multiple=True,
    show_default=True,
)
@_option(
    "--lora",
    "lora_adapters",
    "A LoRA adapter that can be asked for as a model; may be repeated.",
    multiple=True,
    show_default=False,
)
@_option("--max-lora", "max_lora", "Different adapters in execution at once.", type=int)
@_option("--output-tokens", "output_tokens", "Mean length of answers that the request does not limit.", type=int)
@_seconds("--startup-delay", "startup_delay_s", "How long loading the model takes.")
@_seconds(
    "--shutdown-timeout",
    "shutdown_timeout_s",
    "vllm, nim: how long running requests may go on after SIGTERM; 0s aborts them at once.",
)
@_seconds("--sigterm-watchdog", "sigterm_watchdog_s", "sglang: how often it looks, after SIGTERM, whether it is idle.")
@_seconds("--exit-timeout", "exit_timeout_s", "triton-tensorrt-llm: how long kept connections are served after SIGTERM.")
@_seconds("--graceful-timeout", "graceful_timeout_s", "tgi: how long running requests may go on after SIGTERM.")
@_option(
    "--metrics/--no-metrics", "metrics_enabled", "Whether there is a metrics page (vllm keeps one without its own families)."
)
@_seconds(
    "--metrics-delay", "metrics_delay_s", "Time to render the metrics page; it holds up everything else, as on real servers."
)
@_seconds(
    "--metrics-refresh",
    "metrics_refresh_s",
    "How often gauges are brought up to date; 0s is always. Default the engine's own habit.",
)
@_option(
    "--old-metric-names",
    "old_metric_names",
    "vllm, sglang, llamacpp: metrics of an earlier version.",
    is_flag=True,
    show_default=False,
)
@_seconds("--stream-interval", "stream_interval_s", "How often streams are written to; faster tokens leave together.")
def command(**settings: Any) -> None:
    """Run one simulated model server until SIGTERM or SIGINT.

    It serves the OpenAI and Anthropic APIs with made-up text, spends the time a real server of these rates would, and has
    the engine's own metrics page, health, errors, and behaviour at start and at SIGTERM.
    """
    try:
        config = SimConfig(**settings)
    except ConfigError as error:
        raise click.UsageError("\n".join(map(_with_flag, error.problems))) from None
    with _runner() as runner:
        try:
            exit_code = runner.run(_serve(config))
        except OSError as error:
            click.echo(f"epp sim: {config.host}:{config.port}: {error.strerror or error}", err=True)
            raise SystemExit(1) from None
    raise SystemExit(exit_code)


def _with_flag(problem: str) -> str:
    """A problem of `SimConfig` with the option's name in place of the field's."""
    field, _, rest = problem.partition(":")
    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    return f"{flags.get(field, field)}:{rest}"


def _runner() -> asyncio.Runner:
    """An event loop, uvloop's where there is one."""
    with contextlib.suppress(ImportError):
        import uvloop

        return asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return asyncio.Runner()


async def _serve(config: SimConfig) -> int:
    """Serve until the end that the engine makes of SIGTERM; the exit code."""
    loop = asyncio.get_running_loop()
    async with SimServer(config) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.terminate)
        click.echo(f"listening on {server.url}")
        if config.metrics_port is not None:
            click.echo(f"metrics on http://{server.metrics_address}")
        sys.stdout.flush()
        await server.terminated.wait()
        return server.exit_code


if __name__ == "__main__":
    command()
