"""The effective settings as `GET /api/v1/config` shows them, without secrets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(r"(?i)(token|password|passwd|secret|authorization|cookie|credential|api[-_]?key)s?$")
_HEADERS_NAME = re.compile(r"(?i)headers?$")
_USERINFO = re.compile(r"://[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting as it is in force.

    Attributes:
        key: Dotted path in the configuration file, or the flag of one that can only be a flag.
        value: As the program uses it (durations in seconds, sizes in bytes).
        source: `default`, name of the file, `environment EPP_X` or `flag --x`.
    """

    key: str
    value: object
    source: str


def settings_as_json(settings: Sequence[EffectiveSetting]) -> dict[str, Any]:
    """`{"settings": {key: {"value", "source"}}}`, sorted by key."""
    shown = {s.key: {"value": without_secrets(s.key, s.value), "source": s.source} for s in settings}
    return {"settings": dict(sorted(shown.items()))}


def without_secrets(name: str, value: object) -> Any:
    """`value` with everything replaced that may be a credential.

    Hidden are values of names that end like a secret (`token`, `apiKey`, …), the values (not the names) of headers, and
    user and password in a URL.
    """
    if value is None or isinstance(value, bool):
        return value
    if _HEADERS_NAME.search(name):
        return {header: HIDDEN for header, _ in _pairs(value)}
    if _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, str):
        return _USERINFO.sub(f"://{HIDDEN}@", value)
    if isinstance(value, Mapping):
        return {str(key): without_secrets(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [without_secrets(name, inner) for inner in value]
    return value


def _pairs(headers: object) -> list[tuple[str, object]]:
    if isinstance(headers, Mapping):
        return [(str(name), value) for name, value in headers.items()]
    if isinstance(headers, (list, tuple)) and all(isinstance(h, (list, tuple)) and len(h) == 2 for h in headers):
        return [(str(name), value) for name, value in headers]
    return [(HIDDEN, headers)] if headers else []
