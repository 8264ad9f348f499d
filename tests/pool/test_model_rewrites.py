import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.model_rewrites import ModelRewrites, Rewrite, RewriteRule, RewriteTarget


def rule(name: str, models: str, **targets: int) -> RewriteRule:
    """A rule for these models (separated by blanks; none: all) with targets by weight."""
    return RewriteRule(name, tuple(models.split()), tuple(RewriteTarget(model, weight) for model, weight in targets.items()))


def rewrites(*rules: RewriteRule, seed: int = 1) -> ModelRewrites:
    table = ModelRewrites(random.Random(seed))
    table.replace(rules)
    return table


def test_without_rules_nothing_is_active_and_every_model_stays() -> None:
    table = ModelRewrites(random.Random(1))

    assert not table.active
    assert table.choose("m") is None


def test_a_rule_that_names_the_model_rewrites_it_and_no_other() -> None:
    table = rewrites(rule("r", "m n", x=1))

    assert table.active
    assert [table.choose(model) for model in ("m", "n", "o")] == [Rewrite("r", "x"), Rewrite("r", "x"), None]


def test_a_rule_without_models_rewrites_every_model() -> None:
    assert rewrites(rule("r", "", x=1)).choose("whatever") == Rewrite("r", "x")


def test_a_rule_that_names_the_model_beats_one_for_all_even_an_older_one() -> None:
    table = rewrites(rule("older", "", x=1), rule("newer", "m", y=1))

    assert (table.choose("m"), table.choose("n")) == (Rewrite("newer", "y"), Rewrite("older", "x"))


def test_of_rules_of_one_kind_the_first_in_order_counts() -> None:
    table = rewrites(rule("a", "m", x=1), rule("b", "m n", y=1), rule("c", "", z=1), rule("d", "", w=1))

    assert [choice.name for model in ("m", "n", "o") if (choice := table.choose(model))] == ["a", "b", "c"]


def test_a_request_without_a_model_has_nothing_to_rewrite() -> None:
    assert rewrites(rule("r", "", x=1)).choose(None) is None


def test_a_rule_without_targets_leaves_the_model_alone_whatever_comes_later() -> None:
    table = rewrites(rule("keep", "m"), rule("all", "", x=1))

    assert (table.choose("m"), table.choose("n")) == (None, Rewrite("all", "x"))


def test_targets_share_by_weight() -> None:
    table = rewrites(rule("r", "m", a=70, b=30, c=0))

    found = Counter(choice.model for _ in range(10_000) if (choice := table.choose("m")))

    assert found["a"] == pytest.approx(7000, abs=200)
    assert found["b"] == 10_000 - found["a"]


def test_without_any_weight_targets_share_evenly() -> None:
    table = rewrites(rule("r", "m", a=0, b=0, c=0, d=0))

    found = Counter(choice.model for _ in range(10_000) if (choice := table.choose("m")))

    assert [found[model] for model in "abcd"] == [pytest.approx(2500, abs=200)] * 4


def test_one_target_takes_no_random_number() -> None:
    generator = random.Random(1)
    before = generator.getstate()
    table = ModelRewrites(generator)
    table.replace([rule("r", "m", a=1, b=0)])

    assert table.choose("m") == Rewrite("r", "a")
    assert generator.getstate() == before


def test_new_rules_replace_the_old_ones_as_a_whole() -> None:
    table = rewrites(rule("r", "m", x=1))

    table.replace([rule("s", "n", y=1)])
    assert (table.choose("m"), table.choose("n")) == (None, Rewrite("s", "y"))
    table.replace([])
    assert not table.active
    assert table.choose("n") is None


@given(weights=st.lists(st.integers(0, 1_000_000), min_size=1, max_size=6), at=st.floats(0, 1, exclude_max=True))
def test_the_choice_is_where_the_random_number_falls_in_the_sum_of_weights(weights: list[int], at: float) -> None:
    class Fixed(random.Random):
        def random(self) -> float:
            return at

    table = ModelRewrites(Fixed())
    table.replace([RewriteRule("r", (), tuple(RewriteTarget(str(i), weight) for i, weight in enumerate(weights)))])

    choice = table.choose("m")

    assert choice is not None
    index, shares = int(choice.model), weights if any(weights) else [1] * len(weights)
    assert shares[index] > 0
    tolerance = Fraction(1, 10**6)  # the product of random number and sum is rounded
    assert sum(shares[:index]) - tolerance <= Fraction(at) * sum(shares) <= sum(shares[: index + 1]) + tolerance
