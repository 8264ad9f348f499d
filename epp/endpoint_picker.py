"""The decision as a whole: candidates, schedule, count. No I/O, no waiting."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from epp.clock import Clock
from epp.errors import NoEndpointError, PickError, SubsetEmptyError
from epp.pool.endpoint import Endpoint, EndpointAddress
from epp.pool.state import PoolState
from epp.scheduling.plugin import Moment
from epp.scheduling.profile import Schedule, SchedulingProfile
from epp.scheduling.request import InferenceRequest

RECENT_PICKS = 200
"""How many decisions are kept for `/api/v1/picks`."""
RECENT_SCORES = 20_000
"""How many scored candidates those may hold in all, so that a large pool does not turn into memory."""


class PickObserver(Protocol):
    """Who wants to know of each decision (telemetry)."""

    def picked(self, duration_s: float, endpoint_name: str, address: str, model: str) -> None: ...

    def not_picked(self, duration_s: float, code: str, model: str) -> None: ...


class PickLog(Protocol):
    """Where each decision can be logged, for those who want to see them all."""

    def debug(self, event: str, **fields: object) -> object: ...


class Pick:
    """The result of a decision; it holds one count until `release`.

    Attributes:
        addresses: Where the request may go, the choice first.
        choice: The first of them.
        destination: All of them as one text, for the header and the metadata.
    """

    __slots__ = ("_answered", "_clock", "_endpoint", "_picked_at_s", "_pool", "addresses", "choice", "destination")

    def __init__(self, pool: PoolState, chosen: Sequence[Endpoint], clock: Clock, picked_at_s: float) -> None:
        self._pool = pool
        self._clock = clock
        self._picked_at_s = picked_at_s
        self._endpoint: Endpoint | None = chosen[0]
        self._answered = False
        self.choice = chosen[0].spec.address
        self.addresses: tuple[EndpointAddress, ...] = (self.choice,)
        self.destination: str = self.choice
        if len(chosen) > 1:
            self.addresses = tuple(e.address for e in chosen)
            self.destination = ",".join(self.addresses)
        pool.count_pick(chosen[0])

    def served_by(self, address: str) -> bool:
        """Envoy says who really took the request: move the count there. True if that was not the choice.

        An address that is not in the pool keeps the count where it is: nobody else would take it back.
        """
        endpoint = self._endpoint
        if endpoint is None or address == endpoint.address:
            return False
        actual = self._pool.find(EndpointAddress(address))
        if actual is not None:
            self._settle(endpoint)
            self._pool.count_release(endpoint)
            self._pool.count_moved(actual)
            self._endpoint, self._answered = actual, False
        return True

    def reached(self, address: str, attempts: int) -> bool:
        """Envoy says to which address it sent the request last, and how often it tried. True if that was not the choice.

        The count moves there if the pool knows the address; it does not where Envoy talks to the endpoints through
        something else. Where it tried again, those named first have failed it: one a try.
        """
        endpoint = self._endpoint
        if endpoint is None or address == endpoint.address or self._pool.find(EndpointAddress(address)) is None:
            return False
        for before in self.addresses[: attempts - 1]:
            if before == address:
                break
            passed = self._pool.find(before)
            if passed is not None:
                passed.passed_over(self._clock.monotonic_s(), self._pool.picks_total, picked_at_s=self._picked_at_s)
        return self.served_by(address)

    def answered(self, status: int) -> None:
        """The response headers came."""
        endpoint = self._endpoint
        if endpoint is not None and not self._answered:
            self._answered = True
            endpoint.answered(status, self._clock.monotonic_s(), self._pool.picks_total, picked_at_s=self._picked_at_s)

    def lost_connection(self, why: str) -> None:
        """The endpoint refused the connection, or broke it off before its answer; `why` is for people."""
        endpoint = self._endpoint
        if endpoint is not None:
            endpoint.lost_connection(why, self._clock.monotonic_s(), self._pool.picks_total, picked_at_s=self._picked_at_s)

    def cut(self) -> None:
        """The answer ended in the middle, by the endpoint or by the client; releases."""
        endpoint = self._endpoint
        self.release(cut=True)
        if endpoint is not None:
            endpoint.cut(self._clock.monotonic_s(), self._pool.picks_total)

    def progressed(self) -> None:
        """A part of the response came."""
        if self._endpoint is not None:
            self._endpoint.progress_events += 1

    def release(self, *, cut: bool = False) -> None:
        """The request has ended, however it did: take the count back. Further calls do nothing.

        Args:
            cut: It ended before its answer did.
        """
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._settle(endpoint)
            self._pool.count_release(endpoint, cut=cut)

    def _settle(self, endpoint: Endpoint) -> None:
        if not self._answered:
            endpoint.unanswered_requests -= 1


class PickRecord:
    """One decision, kept as references; `as_json` spells it out when somebody asks."""

    __slots__ = ("at_s", "duration_s", "error", "model", "priority", "request_id", "schedule", "scorer_names", "target_model")

    def __init__(self, request: InferenceRequest, at_s: float, duration_s: float, schedule: Schedule | None,
                 scorer_names: Sequence[str], error: PickError | None) -> None:  # fmt: skip
        self.request_id = request.request_id
        self.model = request.client_model or request.model
        self.target_model = None if request.client_model is None else request.model
        self.priority = request.priority
        self.at_s = at_s
        self.duration_s = duration_s
        self.schedule = schedule
        self.scorer_names = scorer_names
        self.error = error

    @property
    def scores_held(self) -> int:
        """How many scored candidates this record keeps alive."""
        return 0 if self.schedule is None else len(self.schedule.candidates)

    def as_json(self) -> dict[str, Any]:
        """One entry of `GET /api/v1/picks`.

        `at` is seconds since 1970 UTC; `model` is what the client named, `target_model` what it got instead, if a rule said so;
        `probe` is the first of `endpoints` where it is there to show whether it is well again.
        """
        schedule = self.schedule
        return {
            "request_id": self.request_id,
            "at": self.at_s,
            "model": self.model,
            "target_model": self.target_model,
            "priority": self.priority,
            "endpoints": [] if schedule is None else [e.address for e in schedule.chosen],
            "probe": None if schedule is None or schedule.probe is None else schedule.probe.address,
            "duration_s": self.duration_s,
            "candidates": [] if schedule is None else list(self._candidates(schedule)),
            "filtered": [] if schedule is None else [{"endpoint": e.address, "by": by} for e, by in schedule.filtered],
            "error": None if self.error is None else {"code": self.error.code, "message": str(self.error)},
        }

    def _candidates(self, schedule: Schedule) -> Iterator[dict[str, Any]]:
        for i, endpoint in enumerate(schedule.candidates):
            scores = {name: row[i] for name, row in zip(self.scorer_names, schedule.scores, strict=True)}
            yield {
                "endpoint": endpoint.address,
                "name": endpoint.spec.name,
                "scores": scores,
                "total": schedule.totals[i],
            }


class EndpointPicker:
    """Chooses an endpoint for a request and counts it there, in one step.

    Args:
        pool: Read for candidates, written for counts.
        profile: Decides among the candidates.
        last_resort: When every endpoint drains, pick a draining one instead of refusing.
    """

    def __init__(
        self,
        pool: PoolState,
        profile: SchedulingProfile,
        *,
        clock: Clock,
        observer: PickObserver,
        log: PickLog,
        last_resort: bool = False,
    ) -> None:
        self._pool = pool
        self._profile = profile
        self._clock = clock
        self._observer = observer
        self._log = log
        self._last_resort = last_resort
        self._recent: deque[PickRecord] = deque()
        self._recent_scores = 0

    def pick(self, request: InferenceRequest) -> Pick:
        """Choose and count.

        Raises:
            NoEndpointError: No endpoint is ready.
            SubsetEmptyError: None of the ready endpoints is in the request's subset.
        """
        began_s = self._clock.monotonic_s()
        moment = Moment(now_s=began_s, picks_total=self._pool.picks_total)
        try:
            schedule = self._profile.run(request, self._candidates(request), moment)
            if not schedule.chosen:
                raise NoEndpointError("the scheduling profile's filters left no endpoint")
        except PickError as error:
            duration_s = self._clock.monotonic_s() - began_s
            self._remember(PickRecord(request, self._clock.wall_s(), duration_s, None, (), error))
            self._observer.not_picked(duration_s, error.code, request.model or "")
            raise
        chosen = schedule.chosen[0]
        if chosen.health.demoted_because is not None:
            chosen.health.probed(began_s, self._pool.picks_total)
        pick = Pick(self._pool, schedule.chosen, self._clock, began_s)
        try:
            duration_s = self._clock.monotonic_s() - began_s
            self._remember(PickRecord(request, self._clock.wall_s(), duration_s, schedule, self._profile.scorer_names, None))
            self._observer.picked(duration_s, chosen.spec.name, chosen.address, request.model or "")
            self._log.debug("picked", request_id=request.request_id, endpoint=pick.destination, model=request.model)
        except BaseException:
            pick.release()  # nobody else would
            raise
        return pick

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last decisions, newest first, at most `limit` of them."""
        newest = [self._recent[-1 - i] for i in range(min(limit, len(self._recent)))]
        return [record.as_json() for record in newest]

    def _candidates(self, request: InferenceRequest) -> Sequence[Endpoint]:
        ready: Sequence[Endpoint] = self._pool.ready
        if not ready and self._last_resort:
            ready = self._pool.draining
        subset = request.subset
        if subset is not None:
            inside = [e for e in ready if e.address in subset or e.ip in subset]
            if not inside:
                raise SubsetEmptyError(
                    f"none of the {len(ready)} ready endpoints is in the subset of {len(subset)} that the request may use"
                )
            return inside
        if not ready:
            raise NoEndpointError(self._why_none())
        return ready

    def _why_none(self) -> str:
        if not self._pool.listed:
            return "the pool is not listed yet"
        endpoints = self._pool.endpoints
        if not endpoints:
            return f"pool {self._pool.name!r} is empty"
        return f"none of the {len(endpoints)} endpoints of pool {self._pool.name!r} is ready"

    def _remember(self, record: PickRecord) -> None:
        self._recent.append(record)
        self._recent_scores += record.scores_held
        while len(self._recent) > RECENT_PICKS or (self._recent_scores > RECENT_SCORES and len(self._recent) > 1):
            self._recent_scores -= self._recent.popleft().scores_held
