"""Errors, classed by what to do."""

import json

import pytest

from epp.discovery.kubernetes.api_errors import (
    ApiError,
    BusyError,
    ConflictError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    UnauthorizedError,
    UnexpectedAnswerError,
    error_of,
    unreachable,
)
from tests.fakes.kube_api_watch import status_object


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (429, BusyError),
        (500, BusyError),
        (504, BusyError),
        (422, ApiError),
        (302, UnexpectedAnswerError),
    ],
)
def test_the_class_says_what_to_do(status: int, kind: type[ApiError]) -> None:
    error = error_of(status, json.dumps(status_object(status, "Word", "a sentence")).encode())
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (status, "Word", "a sentence")
    assert str(error) == f"{status} Word: a sentence"


def test_an_answer_that_is_no_status_object_is_shown_as_it_is() -> None:
    error = error_of(502, b"<html>\n bad \xff gateway</html>" + b"x" * 5000)
    assert isinstance(error, BusyError)
    assert error.reason == ""
    assert error.message.startswith("<html> bad")
    assert len(error.message) <= 400


def test_an_empty_answer_is_an_error_like_any_other() -> None:
    assert str(error_of(403, b"")) == "403 no message"


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("²", None)]
)
def test_the_server_says_how_long_to_wait_in_seconds(header: str | None, seconds: float | None) -> None:
    assert error_of(503, b"{}", retry_after=header).retry_after_s == seconds


def test_a_request_without_answer_tells_its_cause() -> None:
    assert str(unreachable(ConnectionRefusedError("all attempts\nfailed"))) == "all attempts failed"
    assert str(unreachable(EOFError())) == "EOFError"
