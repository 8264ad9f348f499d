"""How found values are shown in errors."""

import json
from collections.abc import Mapping
from typing import Any

_MAX_CHARS = 60
_SHOWN_MAX_CHARS = 100


def quote(text: str) -> str:
    """`text` in double quotes, on one line, cut when it is long."""
    return json.dumps(text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…", ensure_ascii=False)


def show(value: Any) -> str:
    """`value` as Python writes it, on one line, cut when it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of very many digits"
    return shorten(text)


def shorten(text: str) -> str:
    """`text`, cut when it is long."""
    return text if len(text) <= _SHOWN_MAX_CHARS else text[:_SHOWN_MAX_CHARS] + "…"


def type_of(value: Any) -> str:
    """What kind of value it is, for where the value itself must not be shown."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a map" if isinstance(value, Mapping) else "a list"


def step(key: str) -> str:
    """How a path goes on into the value of `key`: `.key`, or `["ke\\ny"]` for keys that would not stay on the line."""
    return f".{key}" if key and key.isprintable() and len(key) <= _MAX_CHARS else f"[{quote(key)}]"
