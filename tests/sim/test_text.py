"""Prompts as tokens and made-up answers."""

import json

from epp.sim.text import TOKENS, AnswerLimits, AnswerWriter, block_hashes, count_tokens

WRITER = AnswerWriter(seed=7, mean_tokens=40)


def test_every_token_of_the_vocabulary_is_four_characters_that_json_leaves_alone() -> None:
    assert {len(token) for token in TOKENS} == {4}
    assert all(json.dumps(token) == f'"{token}"' for token in TOKENS)


def test_a_token_is_four_characters_and_a_prompt_has_at_least_one() -> None:
    assert [count_tokens("x" * length) for length in (0, 1, 4, 5, 8)] == [1, 1, 1, 2, 2]


def test_block_hashes_cover_all_that_came_before() -> None:
    one = block_hashes("a" * 32 + "b" * 32, 8, salt="")
    other = block_hashes("a" * 32 + "c" * 32 + "b" * 31, 8, salt="")

    assert len(one) == 2
    assert len(other) == 2
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_block_hashes_differ_between_adapters() -> None:
    assert block_hashes("a" * 32, 8, salt="") != block_hashes("a" * 32, 8, salt="lora-a")


def test_the_same_seed_and_prompt_give_the_same_answer() -> None:
    again = AnswerWriter(seed=7, mean_tokens=40)

    first = WRITER.write("hello", AnswerLimits(), choice=0, request_seed=0)

    assert again.write("hello", AnswerLimits(), choice=0, request_seed=0) == first


def test_seed_prompt_choice_and_request_seed_each_change_the_answer() -> None:
    def text(seed: int, prompt: str, choice: int, request_seed: int) -> str:
        writer = AnswerWriter(seed=seed, mean_tokens=40)
        return writer.write(prompt, AnswerLimits(), choice=choice, request_seed=request_seed).text

    answers = {text(7, "a", 0, 0), text(8, "a", 0, 0), text(7, "b", 0, 0), text(7, "a", 1, 0), text(7, "a", 0, 1)}

    assert len(answers) == 5


def test_lengths_are_spread_around_the_mean() -> None:
    lengths = [len(WRITER.write(f"prompt {number}", AnswerLimits(), choice=0, request_seed=0).tokens) for number in range(400)]

    assert min(lengths) >= 20
    assert max(lengths) <= 60
    assert 37 <= sum(lengths) / len(lengths) <= 43


def test_a_limit_cuts_the_answer_and_says_so() -> None:
    answer = WRITER.write("hello", AnswerLimits(max_tokens=3), choice=0, request_seed=0)

    assert (len(answer.tokens), answer.finish_reason) == (3, "length")
    assert WRITER.write("hello", AnswerLimits(max_tokens=300), choice=0, request_seed=0).finish_reason == "stop"


def test_ignore_eos_goes_on_to_the_limit_and_min_tokens_is_kept() -> None:
    endless = AnswerLimits(max_tokens=300, ignore_eos=True)
    at_least = AnswerLimits(min_tokens=200)

    assert len(WRITER.write("hello", endless, choice=0, request_seed=0).tokens) == 300
    assert len(WRITER.write("hello", at_least, choice=0, request_seed=0).tokens) == 200


def test_a_lone_surrogate_harms_nobody() -> None:
    assert WRITER.write("\ud800", AnswerLimits(max_tokens=2), choice=0, request_seed=0).text


def test_an_embedding_has_unit_length_and_belongs_to_its_text() -> None:
    vector = WRITER.vector("hello", 16)

    assert len(vector) == 16
    assert abs(sum(value * value for value in vector) - 1) < 1e-9
    assert vector != WRITER.vector("world", 16)
