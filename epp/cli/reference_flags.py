"""Flags of the reference pickers that have no setting here, so that their manifests start unchanged.

Those that mean nothing here are accepted with one warning. Those that would change where requests go and cannot be
honoured end the program with what to use instead: to route otherwise without a word would be worse than not to start.
"""

from collections.abc import Callable, Mapping
from typing import Any

import click

from epp.config import kinds
from epp.errors import ConfigError

MEANINGLESS: Mapping[str, bool] = {
    "--allow-experimental-plugins": True,
    "--emit-endpoint-scores": True,
    "--enable-grpc-stream-metrics": True,
    "--enable-pprof": True,
    "--grpc-max-send-msg-size": False,
    "--health-checking": True,
    "--metrics-cert-dir": False,
    "--metrics-client-ca-file": False,
    "--metrics-endpoint-auth": True,
    "--refresh-prometheus-metrics-interval": False,
    "--tls-cipher-suites": False,
    "--tls-min-version": False,
    "--tracing": True,
    "--zap-devel": True,
    "--zap-encoder": False,
    "--zap-log-level": False,
    "--zap-stacktrace-level": False,
    "--zap-time-encoding": False,
}
"""Flag → whether it is a boolean one."""

_USE_AN_ENGINE = "describe the engine with a core-metrics-extractor plugin in --config-file"

UNSUPPORTED: Mapping[str, str] = {
    "--total-queued-requests-metric": _USE_AN_ENGINE,
    "--total-running-requests-metric": _USE_AN_ENGINE,
    "--kv-cache-usage-percentage-metric": _USE_AN_ENGINE,
    "--lora-info-metric": _USE_AN_ENGINE,
    "--cache-info-metric": _USE_AN_ENGINE,
}
"""Flag → what to do instead."""

SUBSET_FILTER = "--disable-endpoint-subset-filter"


def with_reference_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command these flags; it gets the names of the meaningless ones that were given as `ignored_flags`."""

    def checked(**values: Any) -> Any:
        taken = {flag: values.pop(_parameter(flag)) for flag in (*MEANINGLESS, *UNSUPPORTED, SUBSET_FILTER)}
        verbosity = values.pop("verbosity")
        problems = [f"{flag}: not supported; {instead}" for flag, instead in UNSUPPORTED.items() if taken[flag] is not None]
        if taken[SUBSET_FILTER] is not None:
            try:
                if kinds.BOOLEAN.read(taken[SUBSET_FILTER]):
                    problems.append(f"{SUBSET_FILTER}: expected false (a subset hint is always honoured), found true")
            except ValueError as error:
                problems.append(f"{SUBSET_FILTER}: {error}")
        if problems:
            raise ConfigError(*problems)
        ignored = [flag for flag in MEANINGLESS if taken[flag] is not None]
        return command(ignored_flags=[*ignored, *(["-v"] if verbosity is not None else [])], **values)

    decorated: Callable[..., Any] = checked
    decorated.__doc__ = command.__doc__
    for flag, boolean in (*MEANINGLESS.items(), *((flag, False) for flag in UNSUPPORTED), (SUBSET_FILTER, True)):
        optional: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if boolean else {}
        decorated = click.option(flag, _parameter(flag), hidden=True, default=None, **optional)(decorated)
    return click.option("-v", "--v", "verbosity", hidden=True, default=None)(decorated)


def _parameter(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
