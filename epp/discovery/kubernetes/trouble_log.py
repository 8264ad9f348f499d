"""Telling trouble with the API server once, when it begins, and once when it is over."""

from collections.abc import Collection

from structlog.typing import FilteringBoundLogger

from epp.config.wording import quote, shorten
from epp.discovery.kubernetes.api_errors import ApiError, BusyError, ConflictError, GoneError, UnreachableError

ROUTINE_MAX_FAILURES = 5
"""So many failures in a row may be a fail-over or a proxy's limits, and pass by themselves."""

UNREADABLE_MAX = 100
"""So many objects that cannot be decoded are told one by one."""

_ROUTINE = (UnreachableError, BusyError, GoneError, ConflictError)
"""These may pass by themselves."""


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
        if error.code in self._told or (isinstance(error, _ROUTINE) and self._failures <= ROUTINE_MAX_FAILURES):
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


class UnreadableLog:
    """One warning for each object that cannot be decoded and each fault of it, and after `UNREADABLE_MAX` of them one that
    says so; it begins anew with a list in which all objects can be decoded.
    """

    def __init__(self, log: FilteringBoundLogger, what: str) -> None:
        """Args:
        what: Which objects.
        """
        self._log = log
        self._what = what
        self._warnings = 0
        self._faults: dict[str, str] = {}

    def unreadable(self, key: str, name: str, fault: str) -> None:
        """Tell an object that is passed over, unless it was told."""
        if self._warnings > UNREADABLE_MAX or self._faults.get(key) == fault:
            return
        self._warnings += 1
        if self._warnings > UNREADABLE_MAX:
            problem = f"{self._what}: expected objects that can be decoded, found more than {UNREADABLE_MAX} that cannot"
            self._log.warning("more kubernetes objects are passed over and not told", what=self._what, problem=problem)
            return
        self._faults[key] = fault
        problem = f"{self._what}: {quote(name)}: expected an object that can be decoded, found: {shorten(fault)}"
        self._log.warning("kubernetes object is passed over", what=self._what, name=shorten(name), problem=problem)

    def readable(self, key: str) -> None:
        """This one can be decoded now, or is gone: if it comes again it is told again."""
        self._faults.pop(key, None)

    def listed(self, unreadable: Collection[str]) -> None:
        """A whole list came, in which only these cannot be decoded."""
        self._faults = {key: fault for key, fault in self._faults.items() if key in unreadable}
        if not unreadable:
            self._warnings = 0
