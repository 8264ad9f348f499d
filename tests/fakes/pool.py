"""Pools for tests."""

from collections.abc import Iterable

from epp.pool.endpoint import Endpoint, EndpointSpec, endpoint_address
from epp.pool.metrics import EndpointMetrics
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock


def spec(number: int, **changes: object) -> EndpointSpec:
    """The endpoint `e<number>` at 10.0.0.<number>:8000."""
    fields: dict[str, object] = {"address": endpoint_address(f"10.0.0.{number}", 8000), "name": f"e{number}"}
    return EndpointSpec(**{**fields, **changes})  # type: ignore[arg-type]


def pool_of(specs: int | Iterable[EndpointSpec], clock: FakeClock | None = None) -> PoolState:
    """A listed pool with these endpoints; a number makes so many."""
    pool = PoolState(clock or FakeClock(), name="p", source="static")
    pool.sync([spec(n) for n in range(1, specs + 1)] if isinstance(specs, int) else specs)
    return pool


def tell(endpoint: Endpoint, clock: FakeClock, **metrics: object) -> None:
    """A scrape of `endpoint` ends now and says `metrics`."""
    endpoint.scraped(
        EndpointMetrics(**metrics),  # type: ignore[arg-type]
        began_at_s=clock.now_s,
        in_flight_at_begin=endpoint.in_flight_requests,
    )
