"""Crashes under load: what had no answer yet gets one, what had begun ends with an error, and nothing else fails."""

import pytest

from tests.rollout.crashes import Crash, network_cut, one_of_two_pickers_killed, only_picker_killed, server_killed

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]


def check_lost_server(crash: Crash) -> None:
    assert crash.beyond == ()
    assert crash.tally.lost == 0
    # It was giving answers, and others waited in its queue.
    assert crash.tally.cut >= 1
    assert crash.after is not None
    assert crash.after.retried_requests >= 1
    # Of twenty and more; now and then it may be tried whether it is back.
    assert crash.after.picks <= 2


async def test_requests_that_a_killed_server_has_not_begun_to_answer_are_answered_by_others() -> None:
    check_lost_server(await server_killed())


async def test_a_server_whose_network_is_cut_loses_no_request_and_comes_back() -> None:
    check_lost_server(await network_cut())


async def test_after_the_death_of_the_only_picker_requests_go_on_and_its_successor_knows_what_runs() -> None:
    """Field report 51: the counts of a new picker recover from scrapes."""
    crash = await only_picker_killed()

    assert crash.beyond == ()
    assert crash.tally.whole >= 35


async def test_the_death_of_one_of_two_pickers_fails_nothing_that_had_no_stream_to_it() -> None:
    """Field report 77."""
    crash = await one_of_two_pickers_killed()

    assert crash.beyond == ()
    assert crash.tally.whole >= 20
