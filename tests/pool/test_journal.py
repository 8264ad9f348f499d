"""One line per change of an endpoint's state."""

from epp.pool.endpoint import EndpointSpec, endpoint_address
from epp.pool.journal import PoolJournal
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock


class Lines:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def info(self, event: str, **fields: object) -> None:
        self.seen.append(("info", event, *(str(fields.get(key, "")) for key in ("name", "was", "state", "why"))))

    def warning(self, event: str, **fields: object) -> None:
        self.info(event, **fields)
        self.seen[-1] = "warning", *self.seen[-1][1:]

    def new(self) -> list[tuple[str, ...]]:
        seen, self.seen = self.seen, []
        return seen


def spec(number: int, *, draining: bool = False) -> EndpointSpec:
    return EndpointSpec(address=endpoint_address(f"10.0.0.{number}", 8000), name=f"gpu-{number}", draining=draining)


def test_each_change_is_told_once() -> None:
    pool = PoolState(FakeClock(), name="p", source="file")
    lines = Lines()
    journal = PoolJournal(pool, lines)
    journal.look()
    pool.sync([spec(1)])
    journal.look()
    assert lines.new() == [], "the first listing is told as a whole, by others"
    pool.sync([spec(1), spec(2)])
    journal.look()
    journal.look()
    assert lines.new() == [("info", "endpoint state", "gpu-2", "None", "ready", "None")]
    first, second = pool.endpoints
    pool.count_pick(first)
    pool.sync([spec(1, draining=True), spec(2)])
    second.health.demote("answered 500", 0.0)
    journal.look()
    assert lines.new() == [
        ("info", "endpoint state", "gpu-1", "ready", "draining", "marked as draining"),
        ("warning", "endpoint state", "gpu-2", "ready", "demoted", "answered 500"),
    ]
    second.health.demote("answered 502", 0.0)
    pool.sync([spec(2)])
    journal.look()
    assert lines.new() == [], "it leaves while a request runs there: still draining"
    second.health.succeeded(0.0, sent_at_s=0.0)
    pool.count_release(first)
    journal.look()
    assert lines.new() == [
        ("info", "endpoint state", "gpu-2", "demoted", "ready", "None"),
        ("info", "endpoint is gone", "gpu-1", "", "", ""),
    ]


def test_an_endpoint_whose_answers_fail_from_the_start_is_told() -> None:
    pool = PoolState(FakeClock(), name="p", source="file")
    pool.sync([spec(1)])
    pool.endpoints[0].health.demote("answered 500", 0.0)
    lines = Lines()
    PoolJournal(pool, lines).look()
    assert lines.new() == [("warning", "endpoint state", "gpu-1", "None", "demoted", "answered 500")]


def test_refused_connections_are_left_to_the_log_of_the_scrapes_that_see_them() -> None:
    """Field report 45: a server that goes and comes back makes one line each, and the scraper writes them."""
    pool = PoolState(FakeClock(), name="p", source="file")
    pool.sync([spec(1)])
    lines = Lines()
    journal = PoolJournal(pool, lines)
    journal.look()
    pool.endpoints[0].refused_connections(0.0)
    journal.look()
    pool.endpoints[0].accepted_connection(1.0)
    journal.look()
    assert lines.new() == []
