"""What people read about scrapes."""

from epp.pool.endpoint import Endpoint
from epp.scrape.change_log import FAILING, FAILURES_TO_TELL, RECOVERED, ChangeLog
from epp.scrape.reasons import Reason
from tests.fakes.clock import FakeClock
from tests.scrape.fake_pages import Lines, spec


class Rig:
    def __init__(self) -> None:
        self.lines = Lines()
        self.clock = FakeClock()
        self.changes = ChangeLog(self.lines, self.clock, Endpoint(spec()))

    def fail(self, reason: Reason = Reason.CONNECT, *, times: int = 1) -> None:
        for _ in range(times):
            self.changes.failed(reason, "no connection: refused")
            self.clock.advance(0.05)


def test_a_single_lost_scrape_is_not_told() -> None:
    rig = Rig()
    rig.fail(times=FAILURES_TO_TELL - 1)
    rig.changes.succeeded()

    assert rig.lines.told == []


def test_a_minute_of_failures_is_one_line_and_the_return_another() -> None:
    """Field report 45: one line per change of state, not one an attempt."""
    rig = Rig()
    rig.fail(times=1200)
    rig.changes.succeeded()
    rig.changes.succeeded()

    assert rig.lines.events == [FAILING, RECOVERED]
    _, _, fields = rig.lines.told[0]
    assert fields == {
        "endpoint": "10.0.0.1:8000",
        "name": "10.0.0.1:8000",
        "reason": "connect",
        "detail": "no connection: refused",
    }


def test_another_kind_of_failure_is_told() -> None:
    rig = Rig()
    rig.fail(times=5)
    rig.fail(Reason.STATUS, times=5)

    assert [fields["reason"] for _, _, fields in rig.lines.told] == ["connect", "status"]


def test_an_endpoint_that_flaps_makes_at_most_five_lines_a_minute_and_the_last_state_is_told() -> None:
    """Field report 45: at most five lines in 60 s, whatever the endpoint does."""
    rig = Rig()
    while rig.clock.now_s < 1059:
        rig.fail(times=4)
        rig.changes.succeeded()
    assert 3 <= len(rig.lines.told) <= 5

    for _ in range(2000):
        rig.changes.succeeded()
        rig.clock.advance(0.05)
    assert rig.lines.events[-1] == RECOVERED


def test_a_bug_is_told_at_once_and_with_its_stack() -> None:
    rig = Rig()
    for _ in range(10):
        rig.changes.failed(Reason.INTERNAL, "internal error: KeyError", with_stack=True)

    ((level, event, fields),) = rig.lines.told
    assert (level, event, fields["exc_info"]) == ("error", FAILING, True)
