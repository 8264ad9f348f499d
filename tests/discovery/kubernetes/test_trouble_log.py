"""Trouble is told once."""

from typing import Any

from epp.discovery.kubernetes.api_errors import ApiError, BusyError, ForbiddenError, UnauthorizedError, UnreachableError
from epp.discovery.kubernetes.trouble_log import ROUTINE_MAX_FAILURES, UNREADABLE_MAX, TroubleLog, UnreadableLog
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


def test_what_no_list_of_routine_knows_is_told_at_once() -> None:
    assert told(ApiError(400, "BadRequest", "no such selector")) == [
        ("warning", "pods in namespace x: expected to list them, found 400 BadRequest: no such selector")
    ]


def unreadable_log() -> tuple[UnreadableLog, list[dict[str, Any]]]:
    log, lines = capturing_log()
    return UnreadableLog(log, "pods in namespace x"), lines


def test_an_object_that_cannot_be_decoded_is_told_once_for_each_fault() -> None:
    log, lines = unreadable_log()
    for fault in ("f", "f", "g", "g"):
        log.unreadable("uid", "a", fault)
    assert len(lines) == 2
    log.readable("uid")
    log.unreadable("uid", "a", "g")
    assert len(lines) == 3


def test_of_very_many_objects_that_cannot_be_decoded_some_are_told() -> None:
    log, lines = unreadable_log()
    for number in range(10_000):
        log.unreadable(f"uid-{number}", f"a{number}", "f")
        log.listed({f"uid-{number}"})
    assert len(lines) == UNREADABLE_MAX + 1
    log.listed(set())
    log.unreadable("uid", "a", "f")
    assert len(lines) == UNREADABLE_MAX + 2


def test_long_names_and_faults_are_cut() -> None:
    log, lines = unreadable_log()
    log.unreadable("uid", "a" * 1_000_000, "f" * 1_000_000)
    assert len(str(lines)) < 1000
