"""Log lines: one event with fields, as JSON or for people, always to one stream.

The event is a constant and everything that changes is a field, so that lines can be counted and searched. Fields whose name
says that they hold a credential or what a user wrote are replaced here, whoever logged them.
"""

import json
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("json", "console")
LIBRARY_LEVEL = logging.WARNING
"""What libraries say below this is not logged."""
HIDDEN = "(hidden)"
HIDDEN_FIELDS = frozenset(
    {
        "api_key",
        "authorization",
        "body",
        "content",
        "cookie",
        "credentials",
        "headers",
        "input",
        "messages",
        "password",
        "prompt",
        "secret",
        "token",
    }
)

LoggerFactory = Callable[[str], FilteringBoundLogger]
"""Gives the logger of a part; the name stands in each line as `logger`."""


def configure_logging(level: str, format: str, stream: TextIO | None = None) -> LoggerFactory:  # noqa: A002
    """Set up structlog and the standard library's logging for this process; called once, when the program is put together.

    Args:
        level: Lowest level that is logged: `debug`, `info`, `warning` or `error`. A call below it costs a fifth of a
            microsecond, since its method does nothing at all.
        format: `json` for one JSON object a line, `console` for people.
        stream: Where lines go; None for standard error.

    Raises:
        ValueError: `level` or `format` is none of these.
    """
    if level not in LEVELS:
        raise ValueError(f"level: expected one of {', '.join(LEVELS)}, found {level!r}")
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, found {format!r}")
    out = sys.stderr if stream is None else stream
    first: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_fields,
    ]
    last = _json_renderer() if format == "json" else _console_renderer(out)
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    _route_libraries(out, first, last)

    def logger(name: str) -> FilteringBoundLogger:
        # `bind` gives a finished logger; the proxy of `get_logger` would look itself up again at each call.
        bound: FilteringBoundLogger = structlog.get_logger().bind(logger=name)
        return bound

    return logger


def hide_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the values of fields that may hold a credential or a prompt."""
    for name in HIDDEN_FIELDS & event.keys():
        event[name] = HIDDEN
    return event


def _json_renderer() -> list[Processor]:
    def encoded(event: dict[str, Any], **_: Any) -> str:
        ordered = {name: event.pop(name, None) for name in ("timestamp", "level", "logger", "event")} | event
        try:
            return msgspec.json.encode(ordered, enc_hook=str).decode()
        except (UnicodeEncodeError, TypeError, ValueError):
            return json.dumps(ordered, default=repr, skipkeys=True)  # slower, takes what the other refuses

    # A plain traceback: the structured one of structlog carries local variables, and those hold prompts.
    return [structlog.processors.format_exc_info, _without_surrogates, structlog.processors.JSONRenderer(serializer=encoded)]


def _console_renderer(out: TextIO) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [_without_surrogates, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain, pad_event_to=0)]


def _without_surrogates(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Lone surrogates, which JSON bodies can bring into a model's name, have no UTF-8 form."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isascii():
            event[name] = value.encode("utf-8", "replace").decode("utf-8")
    return event


class LibraryLogHandler(logging.StreamHandler[TextIO]):
    """Writes what libraries log through the standard library in the same form as our own lines."""


def _route_libraries(out: TextIO, first: list[Processor], last: list[Processor]) -> None:
    handler = LibraryLogHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *first],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    for earlier in [h for h in root.handlers if isinstance(h, LibraryLogHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(LIBRARY_LEVEL)
