"""What all ext_proc sessions share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from epp.clock import Clock
from epp.config.settings import LimitSettings, RequestSettings
from epp.extproc.budget import BufferBudget
from epp.scheduling.request import InferenceRequest
from epp.telemetry.outcome import RequestOutcome


class SessionPick(Protocol):
    """A decision, as a session uses it (`epp.endpoint_picker.Pick`)."""

    @property
    def destination(self) -> str: ...

    @property
    def choice(self) -> str: ...

    def served_by(self, address: str) -> bool: ...

    def answered(self, status: int) -> None: ...

    def progressed(self) -> None: ...

    def release(self) -> None: ...


class SessionObserver(Protocol):
    """Who wants to know how requests went (telemetry)."""

    def request_began(self, outcome: RequestOutcome) -> None:
        """A request was routed; `request_ended` follows for each."""
        ...

    def request_ended(self, outcome: RequestOutcome) -> None: ...

    def served_elsewhere(self) -> None: ...

    def body_read(self, duration_s: float) -> None: ...

    def body_not_inspected(self, reason: str) -> None: ...


class Bugs(Protocol):
    """Where a bug is reported: a log with the stack."""

    def exception(self, event: str, **fields: object) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What all ext_proc sessions share.

    Attributes:
        pick: Decides and counts; raises PickError.
        budget: Bytes held over all sessions.
        next_request_id: Names a request whose client sent no `x-request-id`.
    """

    pick: Callable[[InferenceRequest], SessionPick]
    clock: Clock
    observer: SessionObserver
    bugs: Bugs
    limits: LimitSettings
    requests: RequestSettings
    budget: BufferBudget
    next_request_id: Callable[[], str]
