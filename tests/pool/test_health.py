"""What an endpoint's own answers tell."""

from epp.pool.health import BUSY_ANSWERS_TO_DEMOTE, CUT, RECENT_S, REFUSES, EndpointHealth


def test_three_failures_in_a_row_demote_and_two_do_not() -> None:
    health = EndpointHealth()
    for expected in (None, None, "3 answers in a row failed, the last one answered 500"):
        health.failed("answered 500", 0.0, 0, sent_at_s=0.0)
        assert health.demoted_because == expected


def test_a_good_answer_between_starts_the_row_anew() -> None:
    health = EndpointHealth()
    for _ in range(10):
        health.failed("answered 500", 0.0, 0, sent_at_s=0.0)
        health.failed("answered 500", 0.0, 0, sent_at_s=0.0)
        health.succeeded(0.0, sent_at_s=0.0)
    assert health.demoted_because is None


def test_a_failed_probe_puts_the_next_one_off() -> None:
    health = EndpointHealth()
    health.demote("answered 500", 0.0, 0)
    assert health.probe_is_due(10.0, 0)
    health.probed(10.0, 0)
    health.failed("answered 500", 10.1, 1, sent_at_s=10.0)
    assert not health.probe_is_due(19.0, 1)
    assert health.probe_is_due(20.1, 1)


def test_each_probe_in_vain_makes_the_pause_to_the_next_one_twice_as_long() -> None:
    """A draining vLLM under much traffic answers 500 for minutes."""
    health = EndpointHealth()
    for _ in range(2):
        health.demote("answered 500", 0.0, 0)
        picks, at_s, probes = 0, 0.0, []
        while at_s < 60.0:
            at_s, picks = at_s + 0.1, picks + 1_000
            if health.probe_is_due(at_s, picks):
                health.probed(at_s, picks)
                health.failed("answered 500", at_s, picks, sent_at_s=at_s)
                probes.append(round(at_s))
        assert probes == [1, 3, 7, 15, 23, 31, 39, 47, 55]
        assert health.succeeded(100.0, sent_at_s=100.0)


def test_passing_on_requests_is_no_failure_of_a_server_that_works_however_often() -> None:
    """An overload is no death, also where the proxy repeats busy answers elsewhere."""
    health = EndpointHealth()
    health.succeeded(0.0, sent_at_s=0.0)
    for step in range(10):
        at_s = float(step) / 10
        for _ in range(10):
            health.passed_over("failed a request", at_s, 0)
        assert health.demoted_because == "failed a request"
        assert health.accepted(at_s + 0.05)
    assert (health.failures_in_row, health.busy_in_row) == (0, 10)
    health.passed_over("failed a request", 1.0, 0)
    assert health.succeeded(1.1, sent_at_s=0.0), "an older request that ends well shows that it works"


def test_one_that_refuses_connections_is_hardly_probed_by_requests() -> None:
    """Field report 13: a refused connection counts at once; the scrape sees when it listens again."""
    health = EndpointHealth()
    health.refused(0.0)
    refusing = health.demoted_because
    assert not health.probe_is_due(59.0, 1000)
    assert health.probe_is_due(60.0, 0)
    assert health.accepted(60.0)
    assert (refusing, health.demoted_because) == (REFUSES, None)
    assert not health.accepted(60.0)


def test_connections_that_are_taken_do_not_excuse_failing_answers() -> None:
    health = EndpointHealth()
    health.demote("answered 500", 0.0, 0)
    health.refused(1.0)
    assert not health.accepted(2.0)
    assert health.demoted_because == "answered 500"


def test_a_failing_one_that_stops_to_listen_is_hardly_probed_until_it_listens_again() -> None:
    """A draining vLLM answers 500 to all that is new, then ends; its successor shows by a probe that it is well."""
    health = EndpointHealth()
    health.demote("answered 500", 0.0, 0)
    health.refused(1.0)
    assert not health.probe_is_due(59.0, 1000)
    assert not health.accepted(0.9), "a scrape from before"
    assert not health.probe_is_due(59.0, 1000)
    assert not health.accepted(2.0)
    assert health.probe_is_due(2.0, 1000)


def test_a_good_answer_excuses_only_failures_of_requests_that_were_sent_before_it() -> None:
    """A draining vLLM finishes what it has with 200 while it answers everything new with 500."""
    health = EndpointHealth()
    for at_s in (10.0, 10.1, 10.2):
        health.failed("answered 500", at_s, 0, sent_at_s=at_s)
        assert not health.succeeded(at_s, sent_at_s=9.0)
    assert health.demoted_because == "3 answers in a row failed, the last one answered 500"
    assert health.succeeded(20.0, sent_at_s=19.0)
    assert health.demoted_because is None


def test_an_old_answer_does_not_restore_one_that_refuses_connections() -> None:
    health = EndpointHealth()
    health.refused(10.0)
    assert not health.succeeded(11.0, sent_at_s=9.0)
    assert health.demoted_because == REFUSES
    assert health.succeeded(12.0, sent_at_s=11.0)


def test_one_lost_connection_demotes_until_the_next_one_holds() -> None:
    """Field report 13: a refused connection counts at once."""
    health = EndpointHealth()
    health.lost_connection("refused a connection", 5.0, 0, sent_at_s=4.9)
    assert health.demoted_because == "refused a connection"
    assert not health.accepted(4.99), "a scrape that was under way already proves nothing"
    assert health.accepted(5.0)
    assert health.demoted_because is None


def test_many_lost_connections_of_one_moment_are_one_event_and_three_events_are_failures() -> None:
    """What holds for scrapes and not for requests would else go on for ever: metrics on another port, old keep-alives."""
    health = EndpointHealth()
    for at_s in (1.0, 2.0):
        for _ in range(10):
            health.lost_connection("refused a connection", at_s, 0, sent_at_s=at_s)
        assert health.accepted(at_s + 0.1)
    health.lost_connection("refused a connection", 3.0, 0, sent_at_s=3.0)
    assert health.demoted_because == "3 answers in a row failed, the last one refused a connection"
    assert not health.accepted(3.1)


def test_lost_connections_are_probed_like_failures_until_scrapes_are_refused_too() -> None:
    health = EndpointHealth()
    health.lost_connection("refused a connection", 0.0, 0, sent_at_s=0.0)
    assert health.probe_is_due(10.0, 0)
    health.refused(10.0)
    assert not health.probe_is_due(30.0, 1000)


def test_busy_answers_demote_only_after_twenty_without_a_good_one_of_late() -> None:
    health = EndpointHealth()
    health.succeeded(0.0, sent_at_s=0.0)
    for _ in range(BUSY_ANSWERS_TO_DEMOTE + 10):
        health.busy("answered 503", RECENT_S - 0.1, 0)
    early = health.demoted_because
    health.busy("answered 503", RECENT_S, 0)
    assert (early, health.demoted_because) == (
        None,
        "31 answers in a row turned requests away, the last one answered 503",
    )
    assert health.succeeded(RECENT_S + 1.0, sent_at_s=0.0)
    assert (health.demoted_because, health.busy_in_row) == (None, 0)


def test_cut_answers_demote_when_two_end_together_and_none_is_left() -> None:
    health = EndpointHealth()
    health.cut(1.0, 0, was_last=False)
    health.cut(1.1, 0, was_last=False)
    assert not health.demoted_because
    health.cut(1.2, 0, was_last=True)
    assert health.demoted_because == CUT
    assert not health.accepted(1.3), "it was a suspicion, so its share need not grow back"
    assert health.demoted_because is None


def test_a_single_answer_that_is_cut_now_and_then_is_a_client_that_left() -> None:
    health = EndpointHealth()
    for at_s in (1.0, 3.1, 5.2):
        health.cut(at_s, 0, was_last=True)
    assert health.demoted_because is None
