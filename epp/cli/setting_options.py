"""Command-line options made from the declarations of the settings."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from epp.config import kinds
from epp.config.environment import is_service_link
from epp.config.settings import Setting, declared
from epp.errors import ConfigError

Given = Mapping[tuple[str, str], tuple[str, Any]]
"""(group, attribute) → (origin, value), as `epp.config.loader.load_settings` takes it."""


def with_setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command an option for each setting that has a flag; it gets them as one argument `given`."""
    flags = [(group, attribute, setting, default) for group, attribute, setting, default in declared() if setting.flag]

    @functools.wraps(command)
    def with_given(**values: Any) -> Any:
        texts = {(group, attribute): values.pop(_parameter(setting)) for group, attribute, setting, _ in flags}
        return command(given=_read(texts), **values)

    decorated: Callable[..., Any] = with_given
    for _, _, setting, default in reversed(flags):
        decorated = _option(setting, default)(decorated)
    return decorated


def _parameter(setting: Setting) -> str:
    assert setting.flag is not None
    return setting.flag.removeprefix("--").replace("-", "_")


def _option(setting: Setting, default: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # A bare `--flag` means true; `--flag=false` and `--flag false` work too, as in Go's flag package.
    boolean: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if setting.kind is kinds.BOOLEAN else {}
    shown = "" if default in (None, "", ()) else f"  [default: {_spell(default)}]"
    return click.option(
        f"--{_parameter(setting).replace('_', '-')}",
        _parameter(setting),
        metavar=setting.kind.name.upper() if setting.kind is not kinds.BOOLEAN else "[true|false]",
        envvar=setting.variable,
        multiple=setting.repeatable or setting.joined,
        help=setting.sentence + shown,
        **boolean,
    )


def _spell(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default * 1000:g}ms" if default < 1 else f"{default:g}s"
    return str(default)


def _read(texts: Mapping[tuple[str, str], Any]) -> Given:
    """Read the texts that were given; all faults at once."""
    context = click.get_current_context()
    by_key = {(group, attribute): setting for group, attribute, setting, _ in declared()}
    given: dict[tuple[str, str], tuple[str, Any]] = {}
    problems: list[str] = []
    for key, text in texts.items():
        setting = by_key[key]
        source = context.get_parameter_source(_parameter(setting))
        if source not in (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT):
            continue
        from_flag = source is click.core.ParameterSource.COMMANDLINE
        if not from_flag and isinstance(text, str) and is_service_link(setting.kind, text):
            continue
        if setting.joined:
            text = ",".join(text)
        origin = str(setting.flag if from_flag else setting.variable)
        try:
            value = tuple(map(setting.kind.read, text)) if setting.repeatable else setting.kind.read(text)
        except ValueError as error:
            problems.append(f"{origin}: {error}")
            continue
        given[key] = f"{'flag' if from_flag else 'environment'} {origin}", value
    if problems:
        raise ConfigError(*problems)
    return given
