"""A kind of value (`epp.config.kinds`) as click wants it."""

from typing import TYPE_CHECKING, Any

import click

from epp.config.kinds import Kind

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in older releases


class KindType(_ParamType):
    """Reads the text of a flag with a `Kind`; its error becomes click's."""

    def __init__(self, kind: Kind[Any]) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._kind.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
