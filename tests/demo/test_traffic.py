"""The plan of the traffic."""

from itertools import islice, pairwise, takewhile

import pytest

from epp.demo.traffic import ANSWER_TOKENS, CONVERSATIONS, PlannedRequest, plan_traffic


def first(count: int, seed: int = 1) -> list[PlannedRequest]:
    return list(islice(plan_traffic(seed), count))


def test_the_same_seed_makes_the_same_requests() -> None:
    assert first(100, seed=7) == first(100, seed=7)
    assert first(100, seed=7) != first(100, seed=8)


def test_requests_come_in_order_and_at_the_rate_asked_for() -> None:
    times = [request.at_s for request in takewhile(lambda request: request.at_s < 100, plan_traffic(1, rate_per_s=40))]

    assert times == sorted(times)
    assert len(times) == pytest.approx(4000, rel=0.1)


def test_pauses_vary_as_those_of_independent_clients() -> None:
    times = [request.at_s for request in first(2000)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    mean_s = sum(pauses) / len(pauses)
    deviation_s = (sum((pause - mean_s) ** 2 for pause in pauses) / len(pauses)) ** 0.5

    assert deviation_s == pytest.approx(mean_s, rel=0.15)


def test_about_half_of_the_requests_are_streams() -> None:
    assert sum(request.streaming for request in first(1000)) == pytest.approx(500, abs=60)


def test_some_requests_share_one_of_a_few_beginnings() -> None:
    beginnings = [request.messages[0]["content"] for request in first(1000) if request.messages[0]["role"] == "system"]

    assert len(set(beginnings)) == CONVERSATIONS
    assert len(beginnings) == pytest.approx(250, abs=60)


def test_prompts_are_short_and_long() -> None:
    lengths = sorted(sum(len(message["content"]) for message in request.messages) for request in first(500))

    assert lengths[0] < 500
    assert lengths[-1] > 15_000


def test_answers_have_the_planned_lengths_and_short_ones_prevail() -> None:
    lengths = sorted(request.answer_tokens for request in first(1000))

    assert ANSWER_TOKENS[0] <= lengths[0]
    assert lengths[-1] <= ANSWER_TOKENS[1]
    assert lengths[500] < sum(ANSWER_TOKENS) / 2


def test_the_body_asks_for_exactly_the_planned_answer() -> None:
    request = PlannedRequest(
        number=0, at_s=0, streaming=True, messages=({"role": "user", "content": "Hello"},), answer_tokens=33
    )

    assert request.body("m") == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 33,
        "ignore_eos": True,
        "stream": True,
    }
