"""Which model a request gets instead of the one it names. Discovery writes the rules, the request path asks."""

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """A model that a rule sends requests to; its share is `weight` (≥ 0) of the sum over the rule's targets."""

    model: str
    weight: int


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """One rule.

    Attributes:
        name: Of the object that it stands in.
        models: Names of models that it matches; none at all: every model.
        targets: Where matching requests go; where there are none they keep their model, and no later rule changes that.
    """

    name: str
    models: tuple[str, ...]
    targets: tuple[RewriteTarget, ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What was decided.

    Attributes:
        name: Of the object that decided.
        model: The new model; it may be the old one.
    """

    name: str
    model: str


class ModelRewrites:
    """The rules in force.

    A rule that names the model beats one for every model; of several the first in order counts (API of
    InferenceModelRewrite v1alpha2, "Precedence and Conflict Resolution").
    """

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._exact: dict[str, _Split] = {}
        self._generic: _Split | None = None
        self._active = False

    @property
    def active(self) -> bool:
        """Whether there is any rule; without one the request path has nothing to do."""
        return self._active

    def replace(self, rules: Sequence[RewriteRule]) -> None:
        """From now on these rules are in force and no others.

        Args:
            rules: In order of precedence: those of the oldest object first, those of one object in their order.
        """
        exact: dict[str, _Split] = {}
        generic: _Split | None = None
        for rule in rules:
            split = _Split(rule)
            for model in rule.models:
                exact.setdefault(model, split)
            if not rule.models and generic is None:
                generic = split
        self._exact, self._generic, self._active = exact, generic, bool(rules)

    def choose(self, model: str | None) -> Rewrite | None:
        """The model that a request for `model` gets; None where it keeps its own, or names none that could be changed."""
        if not self._active or model is None:
            return None
        split = self._exact.get(model, self._generic)
        return None if split is None else split.choose(self._random)


class _Split:
    """The targets of one rule with their shares, made ready to choose from."""

    __slots__ = ("_last", "_rewrites", "_sums")

    def __init__(self, rule: RewriteRule) -> None:
        weighted = [(target.model, target.weight) for target in rule.targets if target.weight > 0]
        weighted = weighted or [(target.model, 1) for target in rule.targets]
        self._rewrites = tuple(Rewrite(rule.name, model) for model, _ in weighted)
        self._sums = tuple(accumulate(weight for _, weight in weighted))
        self._last = len(weighted) - 1

    def choose(self, random: random.Random) -> Rewrite | None:
        if self._last <= 0:
            return self._rewrites[0] if self._rewrites else None
        return self._rewrites[bisect(self._sums, random.random() * self._sums[-1], 0, self._last)]
