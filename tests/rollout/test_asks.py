"""The requests of a rollout."""

from itertools import islice

import msgspec

from tests.rollout.asks import SHORTEST_S, plan_asks
from tests.rollout.practice import FULL

ASKS = list(islice(plan_asks(0, FULL), 1000))


def test_the_same_seed_makes_the_same_requests() -> None:
    assert list(islice(plan_asks(0, FULL), 1000)) == ASKS
    assert list(islice(plan_asks(1, FULL), 1000)) != ASKS


def test_answers_take_from_a_fifth_of_a_second_to_the_longest() -> None:
    times_s = sorted(ask.takes_s for ask in ASKS)

    assert SHORTEST_S <= times_s[0] <= 0.3
    assert 0.95 * FULL.longest_s <= times_s[-1] <= FULL.longest_s
    assert sum(time_s <= FULL.shorter_s for time_s in times_s) == 750


def test_prompts_are_of_500_bytes_to_the_largest_and_mostly_small() -> None:
    sizes = sorted(ask.prompt_bytes for ask in ASKS)

    assert 500 <= sizes[0] <= 510
    assert 190_000 <= sizes[-1] <= 200_000
    assert sizes[500] < 5_000


def test_a_body_has_the_prompt_of_that_size_and_no_other_begins_with_it() -> None:
    bodies = [msgspec.json.decode(ask.body()) for ask in ASKS[:100]]

    assert [len(body["prompt"]) for body in bodies] == [ask.prompt_bytes for ask in ASKS[:100]]
    assert len({body["prompt"][:60] for body in bodies}) == 100
    assert all(body["stream"] and body["ignore_eos"] for body in bodies)
