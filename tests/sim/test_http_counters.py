"""Counts of HTTP requests."""

from epp.sim.http_counters import MAX_PATHS, HttpCounters


def test_a_request_is_active_until_it_is_answered() -> None:
    counters = HttpCounters()
    key = counters.begin("/v1/models", "GET")
    assert counters.active["/v1/models", "GET"] == 1

    counters.end(key, 200)

    assert counters.active["/v1/models", "GET"] == 0
    assert counters.responses["/v1/models", "GET", 200] == 1
    assert counters.requests["/v1/models", "GET"] == 1


def test_an_answer_that_never_came_is_no_response() -> None:
    counters = HttpCounters()

    counters.end(counters.begin("/v1/models", "GET"), None)

    assert not counters.responses
    assert counters.active["/v1/models", "GET"] == 0


def test_paths_beyond_the_bound_are_counted_together() -> None:
    counters = HttpCounters()
    for number in range(MAX_PATHS + 10):
        counters.end(counters.begin(f"/{number}", "GET"), 404)

    assert len(counters.requests) == MAX_PATHS + 1
    assert counters.requests["other", "GET"] == 10
    assert counters.responses["other", "GET", 404] == 10
