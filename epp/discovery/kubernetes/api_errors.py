"""What can go wrong with a request to the API server, classed by what has to be done about it."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from epp.errors import EppError

_MESSAGE_MAX_CHARS = 400


class ApiError(EppError):
    """The API server did not do what was asked.

    Attributes:
        status: HTTP status, or the code of a Status object; None when there was no answer.
        reason: The API's own word for it, such as `Expired`, from the Status object; empty when there was none.
        message: The API's own sentence, or what happened instead of an answer.
        code: One word for metrics, of a small set.
        retry_after_s: How long the server asks to be left alone, in seconds; else None.
    """

    code: ClassVar[str] = "api_error"

    def __init__(self, status: int | None, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return " ".join(part for part in (str(self.status or ""), self.reason and f"{self.reason}:", self.message) if part)


class GoneError(ApiError):
    """410: the resource version (or the list that is continued) is too old; list again."""

    code = "gone"


class UnauthorizedError(ApiError):
    """401: the credentials are not valid, also after they were read again."""

    code = "unauthorized"


class ForbiddenError(ApiError):
    """403: the credentials are valid and a role is missing."""

    code = "forbidden"


class NotFoundError(ApiError):
    """404: no such object, or its kind is not installed."""

    code = "not_found"


class ConflictError(ApiError):
    """409: the object was changed by somebody else, or is there already."""

    code = "conflict"


class BusyError(ApiError):
    """429 or 5xx: try again later, after `retry_after_s` if it is there."""

    code = "busy"


class UnexpectedAnswerError(ApiError):
    """An answer that no API server gives: something else answers in its place."""

    code = "unexpected_answer"


class CredentialsError(ApiError):
    """There are no credentials to send: a file is missing or broken, a plugin failed."""

    code = "credentials"


class UnreachableError(ApiError):
    """No answer: no connection, no trust in the certificate, too late, or cut off."""

    code = "unreachable"


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    429: BusyError,
}
_GONE = ("Expired", "Gone")


class Status(msgspec.Struct):
    """What the API server answers instead of an object (`meta/v1` Status)."""

    kind: str = ""
    code: int | None = None
    reason: str = ""
    message: str = ""


_STATUS = msgspec.json.Decoder(Status)


def error_of(status: int | None, body: bytes, *, retry_after: str | None = None) -> ApiError:
    """The error that an answer, or an ERROR event of a watch, stands for.

    Args:
        status: HTTP status; None when only the Status object says so.
        body: A Status object, or whatever else came.
        retry_after: The header of that name.
    """
    try:
        said = _STATUS.decode(body)
    except (ValueError, RecursionError):  # also bytes that are no UTF-8, and JSON that is nested too deep
        said = Status(message=body[:_MESSAGE_MAX_CHARS].decode(errors="replace"))
    code = status or said.code
    message = " ".join(said.message.split())[:_MESSAGE_MAX_CHARS] or "no message"
    return _class_of(code, said.reason)(code, said.reason, message, retry_after_s=_seconds(retry_after))


def _class_of(code: int | None, reason: str) -> type[ApiError]:
    if reason in _GONE:
        return GoneError
    if code is None:
        return ApiError
    if code >= 500:
        return BusyError
    return _BY_STATUS.get(code, ApiError if code >= 400 else UnexpectedAnswerError)


def _seconds(header: str | None) -> float | None:
    """`Retry-After` in seconds; a date is not used by API servers and counts as absent."""
    return float(header) if header is not None and header.isascii() and header.isdigit() and len(header) < 6 else None


def unreachable(error: BaseException) -> UnreachableError:
    """The error for a request that got no answer."""
    text = " ".join(str(error).split())
    return UnreachableError(None, "", text[:_MESSAGE_MAX_CHARS] or type(error).__name__)
