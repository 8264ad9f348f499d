"""How found values are shown in errors."""

import json

_MAX_CHARS = 60


def quote(text: str) -> str:
    """`text` in double quotes, on one line, cut when it is long."""
    return json.dumps(text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…", ensure_ascii=False)


def step(key: str) -> str:
    """How a path goes on into the value of `key`: `.key`, or `["ke\\ny"]` for keys that would not stay on the line."""
    return f".{key}" if key and key.isprintable() and len(key) <= _MAX_CHARS else f"[{quote(key)}]"
