"""Telling trouble with the API server once, when it begins, and once when it is over."""

from structlog.typing import FilteringBoundLogger

from epp.discovery.kubernetes.api_errors import (
    ApiError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnexpectedAnswerError,
)

ROUTINE_MAX_FAILURES = 5
"""So many failures in a row may be a fail-over or a proxy's limits, and pass by themselves."""

_FOR_PEOPLE = (UnauthorizedError, ForbiddenError, NotFoundError, CredentialsError, UnexpectedAnswerError)
"""These do not pass by themselves."""


class TroubleLog:
    """One line a change, for one kind of request: one warning when it fails, one more for each other reason, one line at
    info when it works again. What may pass by itself is told only after more than `ROUTINE_MAX_FAILURES` in a row.
    """

    def __init__(self, log: FilteringBoundLogger, what: str, expected: str) -> None:
        """Args:
        what: Which objects.
        expected: What should have come instead of the error: `expected …`.
        """
        self._log = log
        self._what = what
        self._expected = expected
        self._failures = 0
        self._told: set[str] = set()

    def failed(self, error: ApiError) -> None:
        """Tell an error, unless it was told."""
        self._failures += 1
        if error.code in self._told or not (isinstance(error, _FOR_PEOPLE) or self._failures > ROUTINE_MAX_FAILURES):
            self._log.debug("kubernetes request failed", what=self._what, error=error.code, because=str(error))
            return
        self._told.add(error.code)
        problem = f"{self._what}: expected {self._expected}, found {error}"
        self._log.warning("kubernetes request fails", what=self._what, error=error.code, problem=problem)

    def worked(self) -> None:
        """Tell that it works, if it was told that it does not."""
        if self._told:
            self._log.info("kubernetes request works again", what=self._what, failures=self._failures)
        self._failures = 0
        self._told.clear()
