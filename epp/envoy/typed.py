"""Typed Envoy messages on their way to text that Envoy reads."""

import json
from datetime import timedelta
from typing import Any as AnyValue
from typing import cast

import yaml
from betterproto2 import Casing, Message
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.google.protobuf import Any

from epp.envoy.options import HostPort, UnixSocket


def typed(message: Message) -> Any:
    """The message in an `Any`; rendered, it carries its `@type`."""
    return Any.pack(message)


def address(at: HostPort | UnixSocket) -> core.Address:
    """A TCP address or a unix socket."""
    if isinstance(at, UnixSocket):
        return core.Address(pipe=core.Pipe(path=at.path))
    return core.Address(socket_address=core.SocketAddress(address=at.host, port_value=at.port))


def seconds(value_s: float) -> timedelta:
    """A duration; Envoy reads it as `1.5s`."""
    return timedelta(seconds=value_s)


def as_dict(message: Message) -> dict[str, AnyValue]:
    """The message as Envoy's documentation writes it: snake_case, unset fields left out.

    The attributes are named so already. `Casing.SNAKE` would make `consecutive_5_xx` of `consecutive_5xx`, which Envoy
    does not know; a casing is any function from name to name, so `str` keeps them.
    """
    return message.to_dict(casing=cast(Casing, str))


def as_yaml(message: Message) -> str:
    """The message as YAML, fields in the order of Envoy's own definition."""
    return yaml.safe_dump(as_dict(message), sort_keys=False, width=120, allow_unicode=True)


def as_json(message: Message) -> str:
    """The message as JSON, indented, with a line end."""
    return json.dumps(as_dict(message), indent=2) + "\n"
