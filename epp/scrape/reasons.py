"""Why a scrape gave nothing: a small set of words for metrics and logs, and the error that carries one."""

from enum import StrEnum

from epp.errors import EppError


class Reason(StrEnum):
    """The label `reason` of `epp_scrape_errors_total`."""

    TIMEOUT = "timeout"
    """No complete page in time: the server is probably busy, not dead and not idle."""
    REFUSED = "refused"
    """Nothing listens at the port."""
    CONNECT = "connect"
    """Unreachable, reset, closed without an answer, or cut in the middle of the page."""
    TLS = "tls"
    STATUS = "status"
    """An HTTP status that says nothing more special, or a redirect to another host."""
    NOT_ENABLED = "not_enabled"
    """404, 405 or 501: the server has no such page or it is switched off."""
    NEEDS_KEY = "needs_key"
    """401 or 403."""
    TOO_LARGE = "too_large"
    GARBAGE = "garbage"
    """Not HTTP, an HTML page, an encoding nobody asked for, or text that is no metrics page."""
    UNKNOWN_ENGINE = "unknown_engine"
    """A page, but none with known load metrics."""
    INTERNAL = "internal"
    """A bug in this program; logged with a stack."""


ANSWERED = frozenset(
    {Reason.STATUS, Reason.NOT_ENABLED, Reason.NEEDS_KEY, Reason.TOO_LARGE, Reason.GARBAGE, Reason.UNKNOWN_ENGINE}
)
"""Failures of a server that takes connections and answers."""


class ScrapeError(EppError):
    """One scrape gave nothing; the text says why, in one sentence.

    Attributes:
        reason: The kind, for metrics and for how soon to try again.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
