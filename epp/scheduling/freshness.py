"""Which endpoints' metrics are worth believing."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint

INTERVALS_TO_STALE = 3
"""A server whose page is slow to render is read less often; its metrics are not stale before this many of its intervals."""


def without_fresh_metrics(candidates: Sequence[Endpoint], now_s: float, staleness_s: float) -> list[int]:
    """Positions of the candidates that were never scraped, or not since the staleness threshold.

    Scrapes that go well at a longer interval (a slow page is read less often) are as fresh as they can be.
    """
    oldest_s = now_s - staleness_s
    return [i for i, e in enumerate(candidates) if e.known_at_s < oldest_s and not _is_read_slowly(e, now_s)]


def _is_read_slowly(endpoint: Endpoint, now_s: float) -> bool:
    interval_s = endpoint.scrape_interval_s
    return (
        endpoint.scrape_error is None
        and interval_s is not None
        and endpoint.known_at_s >= now_s - INTERVALS_TO_STALE * interval_s
    )
