"""How important requests are: the table of objectives that requests name. Discovery writes it, the request path reads it."""

from collections.abc import Mapping

DEFAULT_PRIORITY = 0
"""Of requests that name no objective, or one that is not known (API of InferenceObjective v1alpha2)."""


class Objectives:
    """Priorities by the name of the objective; the higher the more important, negative ones too."""

    def __init__(self) -> None:
        self._priorities: Mapping[str, int] = {}

    def replace(self, priorities: Mapping[str, int]) -> None:
        """From now on there are these objectives and no others."""
        self._priorities = dict(priorities)

    def priority(self, name: str | None) -> int:
        """The priority of requests that name this objective."""
        return DEFAULT_PRIORITY if name is None else self._priorities.get(name, DEFAULT_PRIORITY)
