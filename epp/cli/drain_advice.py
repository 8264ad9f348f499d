"""`epp drain --advise`: times of pod, hook and engine that fit together, and what those at hand would lose."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from epp.cli.kind_type import KindType
from epp.config import kinds
from epp.config.kinds import Kind
from epp.drain.advice import DEFAULT_IDLE_SAMPLES, DEFAULT_INTERVAL_S, DEFAULT_MIN_WAIT_S, Advice, Need, advise
from epp.drain.losses import Present, losses
from epp.drain.shutdown import ENGINES, EngineShutdown
from epp.errors import ConfigError
from epp.scrape.catalog import EngineCatalog

FORMATS = ("text", "json")


def _pre_stop_s(value: Any) -> float | None:
    """What the hook sleeps: None for `epp drain`, 0 for no hook."""
    text = str(value).strip()
    return None if text == "hook" else 0.0 if text == "none" else kinds.parse_duration_s(text)


_PRE_STOP = Kind("hook|none|duration", "hook (epp drain), none, or the duration of a sleep such as 10s", _pre_stop_s)
_OPTIONS = (
    click.option(
        "--slowest-request",
        "slowest_request_s",
        type=KindType(kinds.DURATION),
        help="With --advise: how long the slowest request takes, from its first byte to the end of its answer.",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=KindType(kinds.DURATION),
        help="With --advise: the terminationGracePeriodSeconds there is now, such as 30s.",
    ),
    click.option(
        "--pre-stop",
        "pre_stop",
        type=str,
        metavar="hook|none|DURATION",
        help="With --advise: the preStop hook there is now: this one, none, or how long it sleeps.  [default: hook]",
    ),
    click.option(
        "--shutdown-timeout",
        "shutdown_timeout_s",
        type=KindType(kinds.DURATION),
        help="With --advise: what the engine has now as its own deadline (vLLM and NIM --shutdown-timeout, Triton "
        "--exit-timeout-secs, TGI --graceful-termination-timeout).",
    ),
    click.option(
        "--format", "output_format", type=click.Choice(FORMATS), default="text", show_default=True, help="With --advise."
    ),
)


def advice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that `print_advice` takes beside those of the hook."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def print_advice(
    *,
    engine: str | None,
    slowest_request_s: float | None,
    min_wait_s: float = DEFAULT_MIN_WAIT_S,
    max_wait_s: float | None = None,
    interval_s: float = DEFAULT_INTERVAL_S,
    idle_samples: int = DEFAULT_IDLE_SAMPLES,
    grace_s: float | None = None,
    pre_stop: str | None = None,
    shutdown_timeout_s: float | None = None,
    output_format: str = "text",
) -> int:
    """Print the advice on standard output, or on standard error what would be lost.

    Args:
        max_wait_s: The `--max-wait` there is now; None where nobody gave one.

    Returns:
        The exit code: 0, or 2 when the flags are wrong or what they describe loses requests.
    """
    try:
        need = _need(engine, slowest_request_s, min_wait_s, interval_s, idle_samples)
        present = _present(need.engine, grace_s, pre_stop, max_wait_s, shutdown_timeout_s)
    except ConfigError as error:
        return _refuse(error.problems)
    if lost := losses(need, present):
        return _refuse(lost)
    advice = advise(need)
    print(_as_json(need, advice) if output_format == "json" else "\n".join(_as_text(need, advice)))
    return 0


def _refuse(sentences: Iterable[str]) -> int:
    for sentence in sentences:
        print(f"epp drain --advise: {sentence}", file=sys.stderr)
    return 2


def _need(engine: str | None, slowest_s: float | None, min_wait_s: float, interval_s: float, idle_samples: int) -> Need:
    """Raises:
    ConfigError: A flag is missing or cannot be.
    """
    problems = []
    if engine is None:
        problems.append(f"--engine: expected one of {', '.join(ENGINES)}, found nothing")
    if not slowest_s:
        problems.append(
            "--slowest-request: expected a duration above 0 such as 120s, found " + ("0s" if slowest_s == 0 else "nothing")
        )
    if interval_s <= 0:
        problems.append("--interval: expected a duration above 0, found 0s")
    facts = None
    try:
        facts = None if engine is None else ENGINES[EngineCatalog().named(engine, "--engine").name]
    except ConfigError as error:
        problems += error.problems
    if problems or facts is None or slowest_s is None:
        raise ConfigError(*problems)
    return Need(engine=facts, slowest_s=slowest_s, min_wait_s=min_wait_s, interval_s=interval_s, idle_samples=idle_samples)


def _present(
    engine: EngineShutdown, grace_s: float | None, pre_stop: str | None, max_wait_s: float | None, deadline_s: float | None
) -> Present:
    """Raises:
    ConfigError: A flag cannot be, or does not belong to what the others say.
    """
    problems = []
    sleep_s = None
    try:
        sleep_s = None if pre_stop is None else _PRE_STOP.read(pre_stop)
    except ValueError as error:
        problems.append(f"--pre-stop: {error}")
    if deadline_s is not None and engine.deadline is None:
        problems.append(f"--shutdown-timeout: expected nothing, since {engine.title} has no such flag, found {deadline_s:g}s")
    if max_wait_s is not None and sleep_s is not None:
        problems.append(f"--max-wait: expected only where the preStop hook is this one, found it with --pre-stop {pre_stop}")
    if problems:
        raise ConfigError(*problems)
    return Present(grace_s=grace_s, sleep_s=sleep_s, max_wait_s=max_wait_s, deadline_s=deadline_s)


def _as_text(need: Need, advice: Advice) -> Iterator[str]:
    yield f"{need.engine.title}, requests of up to {need.slowest_s:g}s:"
    for setting in advice.settings:
        yield ""
        yield f"{setting.name}: {setting.value}"
        yield f"    {setting.why}."
    if advice.remarks:
        yield ""
        yield from (f"Note: {remark}." for remark in advice.remarks)


def _as_json(need: Need, advice: Advice) -> str:
    return json.dumps(
        {
            "engine": need.engine.name,
            "slowest_request_s": need.slowest_s,
            "min_wait_s": advice.min_wait_s,
            "max_wait_s": advice.max_wait_s,
            "termination_grace_period_s": advice.grace_s,
            "engine_deadline_s": advice.deadline_s,
            "settings": [{"name": each.name, "value": each.value, "why": each.why} for each in advice.settings],
            "notes": list(advice.remarks),
        },
        indent=2,
        ensure_ascii=False,
    )
