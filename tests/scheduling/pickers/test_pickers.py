"""Choosing by totals."""

import random
from collections import Counter

from epp.scheduling.pickers.max_score import MaxScorePicker
from epp.scheduling.pickers.random import RandomPicker
from tests.fakes.pool import pool_of

RNG = random.Random(7)


def test_the_highest_total_wins() -> None:
    ready = pool_of(3).ready
    assert MaxScorePicker(rng=RNG).choose(ready, [0.1, 0.9, 0.5], 1) == (ready[1],)


def test_equals_share_at_random() -> None:
    """Field report 49: equal scores must not always break the same way."""
    ready = pool_of(4).ready
    picker = MaxScorePicker(rng=RNG)
    wins = Counter(picker.choose(ready, [1.0, 1.0, 0.5, 1.0], 1)[0] for _ in range(3000))
    assert set(wins) == {ready[0], ready[1], ready[3]}
    assert all(800 < count < 1200 for count in wins.values())


def test_several_endpoints_come_best_first_and_without_repeats() -> None:
    ready = pool_of(4).ready
    chosen = MaxScorePicker(rng=RNG).choose(ready, [0.1, 0.9, 0.5, 0.7], 3)
    assert chosen == (ready[1], ready[3], ready[2])


def test_a_pool_smaller_than_the_list_is_named_whole() -> None:
    ready = pool_of(2).ready
    assert set(MaxScorePicker(rng=RNG).choose(ready, [0.0, 1.0], 5)) == set(ready)
    assert set(RandomPicker(rng=RNG).choose(ready, [0.0, 1.0], 5)) == set(ready)


def test_the_random_picker_does_not_look_at_totals() -> None:
    ready = pool_of(2).ready
    picker = RandomPicker(rng=RNG)
    wins = Counter(picker.choose(ready, [0.0, 1.0], 1)[0] for _ in range(2000))
    assert all(850 < count < 1150 for count in wins.values())


def test_the_ones_behind_the_best_share_at_random_too() -> None:
    """Field report 87: when the first fails, its load must not go to one other endpoint."""
    ready = pool_of(5).ready
    picker = MaxScorePicker(rng=RNG)
    seconds: Counter[object] = Counter()
    for _ in range(2000):
        chosen = picker.choose(ready, [0.2, 0.2, 0.9, 0.2, 0.1], 3)
        assert chosen[0] is ready[2]
        assert len(set(chosen)) == 3
        assert ready[4] not in chosen
        seconds[chosen[1]] += 1
    assert all(500 < seconds[e] < 850 for e in (ready[0], ready[1], ready[3]))


def test_many_equals_are_named_in_random_order() -> None:
    ready = pool_of(6).ready
    orders = {MaxScorePicker(rng=RNG).choose(ready, [1.0] * 6, 2) for _ in range(500)}
    assert len(orders) == 30
