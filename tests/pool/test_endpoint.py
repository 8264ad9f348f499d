"""The record of one endpoint."""

import pytest

from epp.errors import ConfigError
from epp.pool.endpoint import Endpoint, endpoint_address
from tests.fakes.clock import FakeClock
from tests.fakes.pool import spec, tell


@pytest.mark.parametrize(
    ("ip", "port", "text"),
    [
        ("10.0.0.1", 8000, "10.0.0.1:8000"),
        ("fd00::7", 8000, "[fd00::7]:8000"),
        ("[fd00::7]", 8000, "[fd00::7]:8000"),
        ("FD00:0:0::7", 1, "[fd00::7]:1"),
    ],
)
def test_an_address_has_one_form_with_brackets_around_ipv6(ip: str, port: int, text: str) -> None:
    """Field report 11, as far as it needs no cluster."""
    assert endpoint_address(ip, port) == text


@pytest.mark.parametrize(
    ("ip", "port"), [("gpu-a", 8000), ("10.0.0.1", 0), ("10.0.0.1", 65536), ("", 1), ("fe80::1%eth0", 1), ("]10.0.0.1[", 1)]
)
def test_a_wrong_address_says_what_was_expected_and_found(ip: str, port: int) -> None:
    with pytest.raises(ConfigError, match=r"expected .*, found"):
        endpoint_address(ip, port)


def test_a_release_without_a_pick_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Endpoint(spec(1)).count_release()


def test_the_cost_is_divided_by_the_weight() -> None:
    endpoint = Endpoint(spec(1, weight=2.0))
    for _ in range(4):
        endpoint.count_pick()
    assert endpoint.cost == 2.5  # four here and the next one


def test_a_failed_scrape_keeps_the_last_values() -> None:
    clock, endpoint = FakeClock(), Endpoint(spec(1))
    tell(endpoint, clock, running_requests=5.0)
    endpoint.scrape_failed("timeout")
    assert endpoint.load.running_requests == 5.0
    assert endpoint.scrape_error == "timeout"


def test_a_server_that_was_restarted_in_place_loses_its_numbers_and_keeps_our_count() -> None:
    clock, endpoint = FakeClock(), Endpoint(spec(1))
    endpoint.count_pick()
    tell(endpoint, clock, running_requests=50.0)
    endpoint.forget_metrics()
    assert endpoint.load.running_requests == 1.0
    assert endpoint.metrics_age_s(clock.now_s) is None


def test_busy_answers_beside_good_ones_do_not_demote() -> None:
    endpoint = Endpoint(spec(1))
    endpoint.count_pick()
    endpoint.answered(200, 0.0, 1, picked_at_s=0.0)
    for _ in range(10):
        endpoint.count_pick()
        endpoint.answered(503, 0.0, 1, picked_at_s=0.0)
        endpoint.count_release()
    assert endpoint.health.demoted_because is None


def test_failing_answers_demote_and_a_good_one_restores_with_a_ramp() -> None:
    endpoint = Endpoint(spec(1))
    for _ in range(3):
        endpoint.count_pick()
        endpoint.answered(500, 0.0, 1, picked_at_s=0.0)
        endpoint.count_release()
    health = endpoint.health
    assert health.demoted_because == "3 answers in a row failed, the last one answered 500"
    endpoint.count_pick()
    endpoint.answered(200, 7.0, 1, picked_at_s=7.0)
    assert endpoint.health.demoted_because is None
    assert endpoint.ramps_up_from_s == 7.0


def test_busy_answers_while_others_wait_for_theirs_are_no_failures() -> None:
    """Answers that are not streamed begin when they end: the server works on requests that have no answer yet."""
    endpoint = Endpoint(spec(1))
    endpoint.count_pick()
    for _ in range(10):
        endpoint.count_pick()
        endpoint.answered(503, 0.0, 1, picked_at_s=0.0)
        endpoint.count_release()
    assert endpoint.health.demoted_because is None
    assert endpoint.ramps_up_from_s == 0.0, "its share is cut"


def test_busy_answers_of_a_server_that_has_nothing_to_do_are_failures() -> None:
    endpoint = Endpoint(spec(1))
    for _ in range(3):
        endpoint.count_pick()
        endpoint.answered(503, 0.0, 1, picked_at_s=0.0)
        endpoint.count_release()
    assert endpoint.health.demoted_because == "3 answers in a row failed, the last one answered 503"


def test_a_page_that_shows_work_of_others_excuses_busy_answers() -> None:
    """Another picker's requests fill the server."""
    clock, endpoint = FakeClock(), Endpoint(spec(1))
    tell(endpoint, clock, waiting_requests=0.0, running_requests=8.0)
    for _ in range(10):
        endpoint.count_pick()
        endpoint.answered(503, clock.now_s, 1, picked_at_s=clock.now_s)
        endpoint.count_release()
    assert endpoint.health.demoted_because is None


def test_a_page_that_misses_our_requests_excuses_no_busy_answers() -> None:
    """Many requests at once at a server that turns all of them away are no sign of work."""
    clock, endpoint = FakeClock(), Endpoint(spec(1))
    for _ in range(4):
        endpoint.count_pick()
    tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
    for _ in range(3):
        endpoint.answered(503, clock.now_s, 1, picked_at_s=clock.now_s)
    assert endpoint.health.demoted_because == "3 answers in a row failed, the last one answered 503"


def test_too_many_requests_alone_is_no_failure() -> None:
    endpoint = Endpoint(spec(1))
    for _ in range(10):
        endpoint.count_pick()
        endpoint.answered(429, 0.0, 1, picked_at_s=0.0)
        endpoint.count_release()
    assert endpoint.health.demoted_because is None


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_answer_that_blames_the_client_proves_that_the_server_works(status: int) -> None:
    endpoint = Endpoint(spec(1))
    endpoint.health.demote("answered 500", 0.0, 0)
    endpoint.count_pick()
    endpoint.answered(status, 1.0, 1, picked_at_s=0.5)
    assert endpoint.health.demoted_because is None


def test_the_first_failure_cuts_the_share_at_once() -> None:
    endpoint = Endpoint(spec(1))
    endpoint.count_pick()
    endpoint.answered(500, 3.0, 1, picked_at_s=3.0)
    assert endpoint.health.demoted_because is None
    assert endpoint.ramps_up_from_s == 3.0


def test_cut_answers_count_only_where_scrapes_will_tell_and_the_last_of_them() -> None:
    endpoint = Endpoint(spec(1))
    for scraped in (None, 0.05):
        endpoint.scrape_interval_s = scraped
        for _ in range(3):
            endpoint.count_pick()
            endpoint.answered(200, 0.0, 1, picked_at_s=0.0)
        for running in (2, 1, 0):
            assert endpoint.health.demoted_because is None
            endpoint.count_release()
            endpoint.cut(1.0, 1)
            assert endpoint.in_flight_requests == running
    assert endpoint.health.demoted_because == "cut its running answers"
