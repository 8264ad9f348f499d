"""`epp envoy-config`: prints the Envoy configuration that goes with `epp serve`."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from epp.cli.kind_type import KindType
from epp.config import kinds
from epp.config.kinds import Kind
from epp.envoy.options import MAX_ENDPOINTS_NAMED, BodyMode, EnvoyOptions, HostPort, parse_epp_address
from epp.errors import ConfigError

_MISSING = "envoy-data-plane is not installed; `pip install 'inference-epp[envoy-config]'` brings it"
_WHOLE_ONLY = (
    "listen", "admin", "epp_tls", "epp_ca", "epp_server_name", "original_dst", "retry_unanswered", "retry_busy", "fallback",
    "connect_timeout_s", "buffer_limit_bytes", "upstream_http2", "access_log",
)  # fmt: skip
_LIST_ONLY = ("endpoints_named", "retry_unanswered", "retry_busy")
_HEAD = """\
# Envoy 1.33 or newer, better 1.37 or newer (it ends ext_proc streams as soon as nothing more is to be processed).
# Made by: {command}
"""
_FILTER_HEAD = """\
# One entry for http_filters, before the router. It needs
# - a cluster `endpoint_picker` (HTTP/2) with the address of the endpoint picker;
# - a route to a cluster that connects to the address in the header x-gateway-destination-endpoint (to the first that it can,
#   where --endpoints-named lets the picker name several);
# - that header taken off client requests before routing (early_header_mutation_extensions of the connection manager),
#   as otherwise a client can choose where Envoy connects to.
# `epp envoy-config` without --filter-only prints all three.
"""


_ADDRESS = KindType(Kind("host:port", "host:port, IPv6 in brackets, port from 0 to 65535", HostPort.parse))
_EPP_ADDRESS = KindType(
    Kind("host:port|unix:/path", "host:port, IPv6 in brackets, port from 0 to 65535, or unix:/path", parse_epp_address)
)
_ADDRESS_OR_NONE = KindType(
    Kind(
        "host:port|none",
        "none, or host:port, IPv6 in brackets, port from 0 to 65535",
        lambda value: None if value == "none" else HostPort.parse(value),
    )
)
_MODE = KindType(Kind("|".join(BodyMode), "one of " + ", ".join(BodyMode), lambda value: BodyMode(str(value).upper())))
_SECONDS = KindType(kinds.DURATION)
_SIZE = KindType(kinds.SIZE)


def _switch(name: str, sentence: str, *, default: bool = False) -> Callable[[Any], Any]:
    """A boolean written as `--flag`, `--flag=false` or `--flag false`."""
    return click.option(
        name,
        type=KindType(kinds.BOOLEAN),
        is_flag=False,
        flag_value="true",
        default="true" if default else "false",
        show_default=True,
        help=sentence,
    )


@click.command("envoy-config")
@click.option("--epp", type=_EPP_ADDRESS, multiple=True, default=["127.0.0.1:9002"], show_default=True,
              help="ext_proc address of the endpoint picker (IP, DNS name, or unix:/path of a picker beside this Envoy); "
              "may be repeated for replicas.")  # fmt: skip
@click.option("--listen", type=_ADDRESS, default="0.0.0.0:8081", show_default=True, help="Address for clients.")
@click.option("--admin", type=_ADDRESS_OR_NONE, default="127.0.0.1:19000", show_default=True,
              help="Address of Envoy's admin pages, or none.")  # fmt: skip
@_switch("--epp-tls", "TLS to the endpoint picker, as `epp serve` has it by default.", default=True)
@click.option("--epp-ca", metavar="FILE", help="CA certificates that must have signed the endpoint picker's certificate; "
              "without it any certificate is accepted.")  # fmt: skip
@click.option("--epp-server-name", metavar="NAME", help="SNI for the endpoint picker and, with --epp-ca, the DNS name its "
              "certificate must have.")  # fmt: skip
@click.option("--request-body-mode", type=_MODE, default=BodyMode.FULL_DUPLEX_STREAMED.value, show_default=True,
              help="How request bodies reach the endpoint picker; websockets need a mode that does not buffer.")  # fmt: skip
@click.option("--response-body-mode", type=_MODE, show_default="FULL_DUPLEX_STREAMED, with --pick-only NONE",
              help="The same for response bodies. BUFFERED and BUFFERED_PARTIAL hold back streaming answers.")  # fmt: skip
@_switch("--pick-only", "Skip the response phases. With the request body modes NONE and FULL_DUPLEX_STREAMED an ext_proc "
         "stream then ends with the request instead of with the response; the endpoint picker sees neither usage "
         "nor the end of requests.")  # fmt: skip
@_switch("--original-dst", "Connect to the one address that the pick names, whatever it is, instead of following the "
         "picker's list of endpoints. There are no retries then, as they would meet the same dead endpoint again, and "
         "nothing is left to go on with when no endpoint picker lives.")  # fmt: skip
@click.option("--endpoints-named", type=click.IntRange(1, MAX_ENDPOINTS_NAMED), default=3, show_default="3; with "
              "--filter-only 1", help="How many endpoints a pick may name, for retries to go through in that order.",
              )  # fmt: skip
@_switch("--retry-unanswered", "Send a request to another endpoint also when one took it and broke before the first byte of "
         "an answer; without it only when it cannot have been seen.", default=True)  # fmt: skip
@_switch("--retry-busy", "Send a request to another endpoint when one answers 503, as some do when they are full.")
@click.option("--fail-open", type=KindType(kinds.BOOLEAN), is_flag=False, flag_value="true", default=None,
              show_default="true; with --original-dst or --filter-only false",
              help="Go on without a pick when no endpoint picker can be reached: over the endpoints last heard of. With "
              "--original-dst there are none, so that it serves requests only together with --fallback; alone it turns "
              "500 into 503. What was with an endpoint picker when it died is lost either way.")  # fmt: skip
@click.option("--fallback", type=_ADDRESS, multiple=True, help="With --fail-open, a server that takes requests without a "
              "pick, instead of the endpoints last heard of; may be repeated. Brings --original-dst with it.")  # fmt: skip
@click.option("--message-timeout", "message_timeout_s", type=_SECONDS, default="1000s", show_default=True,
              help="How long the picker may hold one message; Envoy has no such limit in FULL_DUPLEX_STREAMED.")  # fmt: skip
@click.option("--connect-timeout", "connect_timeout_s", type=_SECONDS, default="5s", show_default=True,
              help="How long a connection to an endpoint may take to open.")  # fmt: skip
@click.option("--buffer-limit", "buffer_limit_bytes", type=_SIZE, show_default="64MiB with buffering modes, else 1MiB",
              help="Most bytes Envoy holds of one body; a longer BUFFERED request is answered 413, a longer BUFFERED "
              "response 500.")  # fmt: skip
@_switch("--upstream-http2", "HTTP/2 without TLS to the endpoints instead of HTTP/1.1, for gRPC.")
@_switch("--access-log", "One line on standard output for each request, with the pick.")
@_switch("--filter-only", "Print only the entry for http_filters.")
@click.option(
    "--format", "style", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to print it."
)
@click.pass_context
def command(context: click.Context, /, *, filter_only: bool, style: str, **choices: Any) -> None:
    """Print an Envoy configuration for this endpoint picker.

    Clients' requests go to the endpoint picker (ext_proc) and then to the endpoint that it chose, or to the next one that it
    named when the first cannot be reached. Envoy knows the endpoints from the picker (EDS on the same port), so it goes
    on by itself while no picker lives. Headers by which a client could choose the address are taken off before anything else.
    """
    if filter_only:
        _refuse(context, _WHOLE_ONLY, "a whole configuration", "--filter-only")
        # What cluster the filter is used with is not known here, so it asks for what every cluster can do.
        choices["original_dst"] = not _is_named_given(context, "endpoints_named")
        choices["fail_open"] = bool(choices["fail_open"])
    elif choices["fallback"] and not _is_named_given(context, "original_dst"):
        choices["original_dst"] = True
    if choices["original_dst"] and not filter_only:
        _refuse(context, _LIST_ONLY, "a list of endpoints", "--original-dst")
    try:
        options = EnvoyOptions(**choices)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    click.echo(_render(options, filter_only=filter_only, style=style, head=_head(context, filter_only)), nl=False)


def _render(options: EnvoyOptions, *, filter_only: bool, style: str, head: str) -> str:
    """The text; imports the typed messages only now, as they are an extra and take a second to load."""
    try:
        from epp.envoy.config import bootstrap
        from epp.envoy.ext_proc_filter import ext_proc_filter
        from epp.envoy.typed import as_json, as_yaml
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"envoy_data_plane", "betterproto2", "pydantic"}:
            raise
        raise click.ClickException(_MISSING) from None
    message = ext_proc_filter(options) if filter_only else bootstrap(options)
    return as_json(message) if style == "json" else head + as_yaml(message)


def _head(context: click.Context, filter_only: bool) -> str:
    """Comments for the YAML form: how to make the text again and what it needs."""
    words = ["epp envoy-config"]
    for parameter in context.command.params:
        if _is_given(context, parameter):
            value = context.params[parameter.name]
            words += [f"{parameter.opts[0]}={_shown(item)}" for item in (value if parameter.multiple else [value])]
    return _HEAD.format(command=" ".join(words)) + (_FILTER_HEAD if filter_only else "")


def _shown(value: Any) -> str:
    """A value as one word of a shell and one line of a comment."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}s"
        case _:
            return shlex.quote(" ".join(str(value).split()))


def _refuse(context: click.Context, names: Sequence[str], expected: str, found: str) -> None:
    """A UsageError for options that mean nothing here."""
    given = [parameter for parameter in context.command.params if parameter.name in names and _is_given(context, parameter)]
    if given:
        flags = ", ".join(parameter.opts[0] for parameter in given)
        raise click.UsageError(f"{flags}: expected {expected}, found {found}")


def _is_named_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT
