"""Choosing by totals."""

import random
from collections import Counter

from epp.scheduling.pickers.max_score import MaxScorePicker
from epp.scheduling.pickers.random import RandomPicker
from tests.fakes.pool import pool_of

RNG = random.Random(7)


def test_the_highest_total_wins() -> None:
    ready = pool_of(3).ready
    assert MaxScorePicker(rng=RNG).choose(ready, [0.1, 0.9, 0.5]) == (ready[1],)


def test_equals_share_at_random() -> None:
    """Field report 49: equal scores must not always break the same way."""
    ready = pool_of(4).ready
    picker = MaxScorePicker(rng=RNG)
    wins = Counter(picker.choose(ready, [1.0, 1.0, 0.5, 1.0])[0] for _ in range(3000))
    assert set(wins) == {ready[0], ready[1], ready[3]}
    assert all(800 < count < 1200 for count in wins.values())


def test_several_endpoints_come_best_first_and_without_repeats() -> None:
    ready = pool_of(4).ready
    chosen = MaxScorePicker(rng=RNG, max_endpoints=3).choose(ready, [0.1, 0.9, 0.5, 0.7])
    assert chosen == (ready[1], ready[3], ready[2])


def test_a_pool_smaller_than_the_list_is_named_whole() -> None:
    ready = pool_of(2).ready
    assert set(MaxScorePicker(rng=RNG, max_endpoints=5).choose(ready, [0.0, 0.0])) == set(ready)
    assert set(RandomPicker(rng=RNG, max_endpoints=5).choose(ready, [0.0, 0.0])) == set(ready)


def test_the_random_picker_does_not_look_at_totals() -> None:
    ready = pool_of(2).ready
    picker = RandomPicker(rng=RNG)
    wins = Counter(picker.choose(ready, [0.0, 1.0])[0] for _ in range(2000))
    assert all(850 < count < 1150 for count in wins.values())
