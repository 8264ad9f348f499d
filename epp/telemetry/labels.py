"""Label values that come from clients: bounded in number and length, and safe to print."""

from collections.abc import Iterable

MAX_VALUES = 1000
"""Distinct values a label may get from clients in the life of the process; the rest share `OTHER`."""
MAX_CHARACTERS = 200
"""Longer values are cut, with an ellipsis as the last character."""
OTHER = "other"


class LabelLimit:
    """Turns what clients sent into label values, of which there are at most `limit` plus the configured ones.

    Every series costs memory here and in Prometheus, and a client can invent a new model name with each request; the
    reference pickers cap at the same number (llm-d router, `docs/metrics.md`).

    Args:
        always: Values from the configuration; they keep their label whatever clients send, and take no room.
        limit: How many other values get a label of their own; later ones become `other`.
    """

    def __init__(self, always: Iterable[str] = (), *, limit: int = MAX_VALUES) -> None:
        self._labels = {value: printable(value) for value in always}
        self._longest = max([MAX_CHARACTERS, *map(len, self._labels)])
        self._room = limit

    def label(self, value: str) -> str:
        """The label value for `value`, which may be anything a client can put into JSON."""
        if len(value) > self._longest:
            value = value[: MAX_CHARACTERS - 1] + "…"
        known = self._labels.get(value)
        return self._admit(value) if known is None else known

    def configured(self, value: str) -> str:
        """The label value for `value`, which comes from the configuration: it has its label from now on, and takes no room."""
        label = self._labels.get(value)
        if label is None:
            label = self._labels[value] = printable(value)
            self._longest = max(self._longest, len(value))
        return label

    def _admit(self, value: str) -> str:
        if self._room <= 0:
            return OTHER
        self._room -= 1
        label = self._labels[value] = printable(value)
        return label


def printable(value: str) -> str:
    """`value` with line breaks, control characters and lone surrogates (which have no UTF-8 form) replaced by U+FFFD."""
    if value.isprintable():
        return value
    return "".join(character if character.isprintable() else "\ufffd" for character in value)
