"""An exchange for tests: a pool of one endpoint, or what a test gives."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from epp.config.settings import LimitSettings, RequestSettings
from epp.extproc.budget import BufferBudget
from epp.extproc.exchange import Exchange, WarnOnce
from epp.pool.model_rewrites import ModelRewrites, RewriteRule
from epp.pool.objectives import Objectives
from epp.scheduling.request import InferenceRequest
from tests.fakes.clock import FakeClock
from tests.fakes.observer import CountingObserver

DESTINATION = "10.0.0.1:8000"


@dataclass
class FakePick:
    """A decision that remembers what it was told."""

    destination: str = DESTINATION
    choice: str = DESTINATION
    releases: int = 0
    released_cut: bool = False
    statuses: list[int] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    progress: int = 0
    reached_after: list[tuple[str, int]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cuts: int = 0

    def served_by(self, address: str) -> bool:
        self.served.append(address)
        return address != self.destination

    def reached(self, address: str, attempts: int) -> bool:
        self.reached_after.append((address, attempts))
        return True

    def lost_connection(self, why: str) -> None:
        self.lost.append(why)

    def cut(self) -> None:
        self.cuts += 1
        self.release(cut=True)

    def answered(self, status: int) -> None:
        self.statuses.append(status)

    def progressed(self) -> None:
        self.progress += 1

    def release(self, *, cut: bool = False) -> None:
        self.released_cut = self.released_cut or (cut and not self.releases)
        self.releases += 1


class Bench:
    """An exchange and everything that was said to it."""

    def __init__(
        self,
        *,
        max_body: int = 1 << 20,
        max_buffered: int = 8 << 20,
        requests: RequestSettings | None = None,
        rules: Sequence[RewriteRule] = (),
        destination: str = DESTINATION,
    ) -> None:
        self.destination = destination
        self.rewrites = ModelRewrites(random.Random(1))
        self.rewrites.replace(rules)
        self.objectives = Objectives()
        self.warnings: list[str] = []
        self.requests: list[InferenceRequest] = []
        self.picks: list[FakePick] = []
        self.bugs: list[str] = []
        self.error: Exception | None = None
        self.observer = CountingObserver()
        self.clock = FakeClock()
        self.budget = BufferBudget(max_buffered)
        self.exchange = Exchange(
            pick=self.pick,
            clock=self.clock,
            observer=self.observer,
            bugs=self,
            limits=LimitSettings(max_request_body_bytes=max_body, max_buffered_bytes=max_buffered),
            requests=requests or RequestSettings(),
            budget=self.budget,
            next_request_id=lambda: "epp-1",
            rewrites=self.rewrites,
            objectives=self.objectives,
            warn_once=WarnOnce(self),
        )

    def pick(self, request: InferenceRequest) -> FakePick:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        self.picks.append(FakePick(self.destination, self.destination))
        return self.picks[-1]

    def exception(self, event: str, **fields: object) -> None:
        self.bugs.append(event)

    def warning(self, event: str, **fields: object) -> None:
        self.warnings.append(event)
