"""Errors, classed by what has to be done about them.

A `PickError` becomes an answer to one request, in one place (`epp.extproc.encoder`). A `ConfigError` ends the program with
exit code 2 (or keeps the last good state, when it comes from a file that is watched).
"""

from http import HTTPStatus
from typing import ClassVar


class EppError(Exception):
    """Base of every error that this program raises on purpose."""


class ConfigError(EppError):
    """Something the user wrote is wrong; the text says where, what was expected and what was found.

    Attributes:
        problems: One sentence per fault, each `where: expected …, found …`.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BindError(EppError):
    """A port cannot be opened; the text says which and why."""


class PickError(EppError):
    """A request that gets an answer from the endpoint picker instead of an endpoint.

    Attributes:
        status: HTTP status of the answer.
        code: Stable word for programs, sent as `error.code` and as the header `x-epp-reason`.
        error_type: `error.type` in the OpenAI-style body.
        retry_after_s: When waiting helps, how long to wait before the next try, in seconds; else None.
    """

    status: ClassVar[HTTPStatus]
    code: ClassVar[str]
    error_type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None


class NoEndpointError(PickError):
    """The pool has no ready endpoint."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "no_endpoints"
    retry_after_s = 1


class SubsetEmptyError(PickError):
    """The request may only use a subset of the pool, and no ready endpoint is in it."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "subset_empty"
    retry_after_s = 1


class BodyTooLargeError(PickError):
    """The request body is over `limits.maxRequestBodyBytes`."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "body_too_large"
    error_type = "invalid_request_error"


class BodyTimeoutError(PickError):
    """The request body stopped in the middle and nothing more came for `limits.requestBodyTimeout`."""

    status = HTTPStatus.REQUEST_TIMEOUT
    code = "body_timeout"
    error_type = "invalid_request_error"


class BadRequestError(PickError):
    """Strict mode only: the body is not a request that names a model."""

    status = HTTPStatus.BAD_REQUEST
    code = "bad_request"
    error_type = "invalid_request_error"


class ModelNotFoundError(PickError):
    """Strict mode only: no model of that name is configured."""

    status = HTTPStatus.NOT_FOUND
    code = "model_not_found"
    error_type = "invalid_request_error"


class InternalError(PickError):
    """A bug; it is logged with a stack and affects this request only."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"
