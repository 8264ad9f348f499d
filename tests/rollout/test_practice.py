"""What is left out of a rollout, and what follows for its times."""

import pytest

from tests.rollout.practice import FULL, PARTS, QUICK, Pace, Practice


def test_a_practice_says_what_it_is_without() -> None:
    assert str(Practice()) == "with all three"
    assert str(Practice.without(["hook"])) == "without hook"
    assert str(Practice.without(["good-flags", "first-sight"])) == "without first-sight and good-flags"
    assert str(Practice.without(PARTS)) == "without all three"
    assert [Practice.without(left_out).complete for left_out in ([], ["hook"], PARTS)] == [True, False, False]


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_with_good_flags_the_grace_period_has_room_for_the_hook_and_the_longest_answer(pace: Pace) -> None:
    assert pace.grace_for(Practice()) > pace.max_wait_for(Practice()) + pace.longest_s
    assert pace.max_wait_for(Practice()) > pace.min_wait_s + pace.longest_s
    assert pace.grace_for(Practice.without(["hook"])) > pace.longest_s


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_with_bad_flags_an_answer_that_runs_at_the_end_of_a_pod_outlives_the_grace_period(pace: Pace) -> None:
    assert pace.short_grace_s < pace.in_flight_s < pace.longest_s
