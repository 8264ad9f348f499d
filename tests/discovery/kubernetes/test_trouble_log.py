"""Trouble is told once."""

from epp.discovery.kubernetes.api_errors import ApiError, BusyError, ForbiddenError, UnauthorizedError, UnreachableError
from epp.discovery.kubernetes.trouble_log import ROUTINE_MAX_FAILURES, TroubleLog
from tests.discovery.fakes import capturing_log


def told(*course: ApiError | None) -> list[tuple[str, str]]:
    """Level and text of the lines that people see; None in `course` is a success."""
    log, lines = capturing_log()
    trouble = TroubleLog(log, "pods in namespace x", "to list them")
    for error in course:
        if error is None:
            trouble.worked()
        else:
            trouble.failed(error)
    return [(line["log_level"], line.get("problem", line["event"])) for line in lines if line["log_level"] != "debug"]


FORBIDDEN = ForbiddenError(403, "Forbidden", "pods is forbidden")
CUT = UnreachableError(None, "", "cut")


def test_a_missing_role_is_told_at_once_and_once() -> None:
    assert told(FORBIDDEN, FORBIDDEN, FORBIDDEN) == [
        ("warning", "pods in namespace x: expected to list them, found 403 Forbidden: pods is forbidden")
    ]


def test_the_end_of_told_trouble_is_told() -> None:
    assert told(FORBIDDEN, None, None)[1:] == [("info", "kubernetes request works again")]
    assert [level for level, _ in told(FORBIDDEN, None, FORBIDDEN)] == ["warning", "info", "warning"]


def test_another_kind_of_trouble_is_told_again() -> None:
    assert [level for level, _ in told(FORBIDDEN, UnauthorizedError(401, "", ""))] == ["warning"] * 2


def test_two_kinds_of_trouble_that_take_turns_are_told_once_each() -> None:
    assert [level for level, _ in told(*[FORBIDDEN, UnauthorizedError(401, "", "")] * 10, None)] == ["warning"] * 2 + ["info"]


def test_what_passes_by_itself_is_not_told() -> None:
    assert told(*[CUT] * ROUTINE_MAX_FAILURES, None, *[CUT] * ROUTINE_MAX_FAILURES, None) == []


def test_what_does_not_pass_is_told_once() -> None:
    assert told(*[CUT] * 100) == [("warning", "pods in namespace x: expected to list them, found cut")]
    assert len(told(*[CUT] * 50, *[BusyError(503, "", "down")] * 50)) == 2
