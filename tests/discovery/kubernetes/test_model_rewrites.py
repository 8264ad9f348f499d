import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from epp.discovery.kubernetes.model_rewrites import RewriteRules, read_rewrite_rules
from epp.discovery.kubernetes.objects import InferenceModelRewrite
from epp.pool.model_rewrites import ModelRewrites, Rewrite, RewriteRule, RewriteTarget
from tests.fakes import kube_objects

EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def rewrite(name: str, *rules: tuple[list[str], list[tuple[str, int | None]]], **changes: Any) -> InferenceModelRewrite:
    return msgspec.convert(kube_objects.inference_model_rewrite(name, rules=rules, **changes), InferenceModelRewrite)


def odd(rules: Any, **metadata: Any) -> InferenceModelRewrite:
    """An object with rules as the API server would not let them through today."""
    raw = kube_objects.inference_model_rewrite("r", rules=[])
    raw["spec"]["rules"] = rules
    raw["metadata"] |= metadata
    return msgspec.convert(raw, InferenceModelRewrite)


def read(*objects: InferenceModelRewrite) -> RewriteRules:
    return read_rewrite_rules(objects, pool_name="pool", pool_group="inference.networking.k8s.io")


def to(*models: str) -> list[tuple[str, int | None]]:
    return [(model, 1) for model in models]


def test_a_rule_has_the_models_that_it_matches_and_its_targets_with_weights() -> None:
    found = read(rewrite("r", (["m", "n"], [("x", 70), ("y", 30)]), ([], [("z", None)])))

    assert found.problems == ()
    assert found.rules == (
        RewriteRule("r", ("m", "n"), (RewriteTarget("x", 70), RewriteTarget("y", 30))),
        RewriteRule("r", (), (RewriteTarget("z", 0),)),
    )


def test_the_oldest_object_comes_first_and_equally_old_ones_by_name() -> None:
    found = read(
        rewrite("a", (["m"], to("x")), created=LATER),
        rewrite("c", (["m"], to("x")), created=EARLIER),
        rewrite(
            "b",
            (
                ["m"],
                to("x"),
            ),
            (["n"], to("x")),
            created=EARLIER,
        ),
    )

    assert [(rule.name, rule.models) for rule in found.rules] == [("b", ("m",)), ("b", ("n",)), ("c", ("m",)), ("a", ("m",))]


def test_objects_of_both_groups_are_in_one_order() -> None:
    found = read(
        rewrite("newer", (["m"], to("x")), created=LATER, api_version="inference.networking.x-k8s.io/v1alpha2"),
        rewrite("older", (["m"], to("x")), created=EARLIER, api_version="llm-d.ai/v1alpha2"),
    )

    assert [rule.name for rule in found.rules] == ["older", "newer"]


@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.sampled_from([EARLIER, LATER]), min_size=4, max_size=4))
def test_the_order_in_which_objects_come_does_not_matter(names: list[str], created: list[str]) -> None:
    ages = dict(zip("abcd", created, strict=True))

    found = read(*(rewrite(name, ([], to(name)), created=ages[name]) for name in names))

    assert [rule.name for rule in found.rules] == sorted("abcd", key=lambda name: (ages[name], name))


def test_objects_of_other_pools_without_a_pool_or_being_deleted_are_left_out() -> None:
    rules = [{"targets": [{"modelRewrite": "x"}]}]
    no_pool = msgspec.convert({"metadata": {"name": "r", "uid": "u"}, "spec": {"rules": rules}}, InferenceModelRewrite)
    no_spec = msgspec.convert({"metadata": {"name": "r", "uid": "u"}}, InferenceModelRewrite)

    deleted = odd(rules, deletionTimestamp=LATER)
    assert read(rewrite("r", ([], to("x")), pool="other"), no_pool, no_spec, deleted).rules == ()
    assert len(read(odd(rules)).rules) == 1


def test_a_condition_that_is_not_understood_never_matches_and_is_told() -> None:
    """Above all the rule does not become one for every model."""
    condition = {"model": {"type": "RegularExpression", "value": "m.*"}}
    targets = [{"modelRewrite": "x"}]

    found = read(odd([{"matches": [condition], "targets": targets}]))
    assert found.rules == ()
    assert found.problems == (
        'InferenceModelRewrite r: spec.rules[0].matches[0].model.type: expected Exact, found "RegularExpression"',
    )

    found = read(odd([{"matches": [condition, {"model": {"value": "n"}}], "targets": targets}]))
    assert [rule.models for rule in found.rules] == [("n",)]


def test_a_condition_without_a_model_never_matches_and_is_told() -> None:
    found = read(odd([{"matches": [{"model": None}], "targets": [{"modelRewrite": "x"}]}]))

    assert found.rules == ()
    assert found.problems == ("InferenceModelRewrite r: spec.rules[0].matches[0]: expected model, found nothing",)


def test_targets_that_cannot_be_are_left_out_and_told() -> None:
    targets = [{"modelRewrite": ""}, {"modelRewrite": "x", "weight": -1}, {"modelRewrite": "y", "weight": 2}]

    found = read(odd([{"targets": targets}, {"targets": targets[:2]}]))

    assert [rule.targets for rule in found.rules] == [(RewriteTarget("y", 2),)]
    assert found.problems[:2] == (
        "InferenceModelRewrite r: spec.rules[0].targets[0].modelRewrite: expected the name of a model, found nothing",
        "InferenceModelRewrite r: spec.rules[0].targets[1].weight: expected a number from 0, found -1",
    )
    assert len(found.problems) == 4


def test_a_rule_without_targets_is_a_rule_that_leaves_the_model_alone() -> None:
    table = ModelRewrites(random.Random(1))

    table.replace(read(odd([{"matches": [{"model": {"value": "m"}}]}, {"targets": [{"modelRewrite": "x"}]}])).rules)

    assert (table.choose("m"), table.choose("n")) == (None, Rewrite("r", "x"))


def test_an_object_without_rules_or_without_an_age_is_taken_as_it_is() -> None:
    assert read(odd(None)).rules == ()
    rules = [{"targets": [{"modelRewrite": "x"}]}]
    found = read(odd(rules, name="ageless", creationTimestamp=None), odd(rules, name="old"))
    assert [rule.name for rule in found.rules] == ["old", "ageless"]


def test_exact_beats_generic_and_the_oldest_wins() -> None:
    table = ModelRewrites(random.Random(1))

    table.replace(
        read(
            rewrite("exact-newer", (["m"], to("x")), created="2026-01-03T00:00:00Z"),
            rewrite("exact-older", (["m"], to("y")), created=LATER),
            rewrite("generic", ([], to("z")), created=EARLIER),
        ).rules
    )

    assert (table.choose("m"), table.choose("n")) == (Rewrite("exact-older", "y"), Rewrite("generic", "z"))


def test_a_target_too_long_for_a_models_name_is_not_followed_and_told() -> None:
    found = read(rewrite("r", (["m"], to("x" * 257))))

    assert found.rules == ()
    assert found.problems == (
        "InferenceModelRewrite r: spec.rules[0].targets[0].modelRewrite: expected at most 256 characters, found 257",
    )


def test_a_weight_beyond_all_reason_counts_as_the_greatest() -> None:
    found = read(rewrite("r", (["m"], [("x", 10**400), ("y", 1)])))

    assert found.rules[0].targets == (RewriteTarget("x", 1_000_000), RewriteTarget("y", 1))
