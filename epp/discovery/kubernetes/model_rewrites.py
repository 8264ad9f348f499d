"""InferenceModelRewrites as rules in order of precedence. No input or output here."""

from collections.abc import Iterable
from dataclasses import dataclass

from epp.config.wording import quote
from epp.discovery.kubernetes.objects import InferenceModelRewrite, InferenceModelRewriteRule, RewriteMatch, TargetModel
from epp.pool.model_rewrites import RewriteRule, RewriteTarget

_EXACT = "Exact"
MODEL_MAX_CHARS = 256
"""As for the models of requests: a longer text is no model's name, and must not become the label of a metric."""
WEIGHT_MAX = 1_000_000
"""The API server refuses larger ones (API of InferenceModelRewrite v1alpha2)."""


@dataclass(frozen=True, slots=True)
class RewriteRules:
    """What the objects say.

    Attributes:
        rules: In order of precedence.
        problems: A sentence for each part that is not followed.
    """

    rules: tuple[RewriteRule, ...]
    problems: tuple[str, ...]


def read_rewrite_rules(objects: Iterable[InferenceModelRewrite], *, pool_name: str, pool_group: str) -> RewriteRules:
    """The rules of all objects, of whichever API group, that refer to this pool and are not being deleted.

    The oldest object comes first, of equally old ones by name; rules of one object stay in their order. A condition that
    is not understood never matches: it does not make its rule one for every model.
    """
    rules: list[RewriteRule] = []
    problems: list[str] = []
    for each in sorted(objects, key=_precedence):
        pool = each.spec.pool_ref if each.spec is not None else None
        if each.spec is None or pool is None or not pool.names(pool_name, pool_group) or each.metadata.deletion_timestamp:
            continue
        for index, rule in enumerate(each.spec.rules or ()):
            where = f"InferenceModelRewrite {each.metadata.name}: spec.rules[{index}]"
            read = _rule(each.metadata.name, rule, where, problems)
            if read is not None:
                rules.append(read)
    return RewriteRules(tuple(rules), tuple(problems))


def _precedence(each: InferenceModelRewrite) -> tuple[bool, str, str, str]:
    created = each.metadata.creation_timestamp
    return created is None, created or "", each.metadata.name, each.metadata.uid


def _rule(name: str, rule: InferenceModelRewriteRule, where: str, problems: list[str]) -> RewriteRule | None:
    matches = rule.matches or []
    models = [_model(match, f"{where}.matches[{index}]", problems) for index, match in enumerate(matches)]
    understood = tuple(model for model in models if model is not None)
    if matches and not understood:
        return None
    targets = [_target(target, f"{where}.targets[{index}]", problems) for index, target in enumerate(rule.targets or ())]
    usable = tuple(target for target in targets if target is not None)
    return None if targets and not usable else RewriteRule(name, understood, usable)


def _model(match: RewriteMatch, where: str, problems: list[str]) -> str | None:
    model = match.model
    if model is None:
        problems.append(f"{where}: expected model, found nothing")
        return None
    if model.type not in (None, _EXACT):
        problems.append(f"{where}.model.type: expected {_EXACT}, found {quote(model.type or '')}")
        return None
    return model.value


def _target(target: TargetModel, where: str, problems: list[str]) -> RewriteTarget | None:
    """A target; one without a weight has none, so that it gets nothing beside others that have one."""
    weight = min(target.weight or 0, WEIGHT_MAX)
    if not target.model_rewrite:
        problems.append(f"{where}.modelRewrite: expected the name of a model, found nothing")
        return None
    if len(target.model_rewrite) > MODEL_MAX_CHARS:
        problems.append(
            f"{where}.modelRewrite: expected at most {MODEL_MAX_CHARS} characters, found {len(target.model_rewrite)}"
        )
        return None
    if weight < 0:
        problems.append(f"{where}.weight: expected a number from 0, found {weight}")
        return None
    return RewriteTarget(target.model_rewrite, weight)
