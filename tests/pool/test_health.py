"""What an endpoint's own answers tell."""

from epp.pool.health import REFUSES, EndpointHealth


def test_three_failures_in_a_row_demote_and_two_do_not() -> None:
    health = EndpointHealth()
    for expected in (None, None, "3 answers in a row failed, the last one answered 500"):
        health.failed("answered 500", 0.0, 0)
        assert health.demoted_because == expected


def test_a_good_answer_between_starts_the_row_anew() -> None:
    health = EndpointHealth()
    for _ in range(10):
        health.failed("answered 500", 0.0, 0)
        health.failed("answered 500", 0.0, 0)
        health.succeeded()
    assert health.demoted_because is None


def test_a_failed_probe_puts_the_next_one_off() -> None:
    health = EndpointHealth()
    health.demote("answered 500", 0.0, 0)
    assert health.probe_is_due(10.0, 0)
    health.probed(10.0, 0)
    health.failed("answered 500", 10.1, 1)
    assert not health.probe_is_due(19.0, 1)
    assert health.probe_is_due(20.1, 1)


def test_one_that_refuses_connections_is_hardly_probed_by_requests() -> None:
    """Field report 13: a refused connection counts at once; the scrape sees when it listens again."""
    health = EndpointHealth()
    health.refused(0.0)
    refusing = health.demoted_because
    assert not health.probe_is_due(59.0, 1000)
    assert health.probe_is_due(60.0, 0)
    assert health.accepted()
    assert (refusing, health.demoted_because) == (REFUSES, None)
    assert not health.accepted()


def test_connections_that_are_taken_do_not_excuse_failing_answers() -> None:
    health = EndpointHealth()
    health.demote("answered 500", 0.0, 0)
    health.refused(1.0)
    assert not health.accepted()
    assert health.demoted_because == "answered 500"
