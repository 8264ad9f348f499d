"""What all ext_proc sessions share."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from epp.clock import Clock
from epp.config.settings import LimitSettings, RequestSettings
from epp.extproc.budget import BufferBudget
from epp.pool.model_rewrites import ModelRewrites
from epp.pool.objectives import Objectives
from epp.scheduling.request import InferenceRequest
from epp.telemetry.outcome import RequestOutcome


class SessionPick(Protocol):
    """A decision, as a session uses it (`epp.endpoint_picker.Pick`)."""

    @property
    def destination(self) -> str: ...

    @property
    def choice(self) -> str: ...

    def served_by(self, address: str) -> bool: ...

    def reached(self, address: str, attempts: int) -> bool: ...

    def answered(self, status: int) -> None: ...

    def lost_connection(self, why: str) -> None: ...

    def cut(self) -> None: ...

    def progressed(self) -> None: ...

    def release(self, *, cut: bool = False) -> None: ...


class SessionObserver(Protocol):
    """Who wants to know how requests went (telemetry)."""

    def request_began(self, outcome: RequestOutcome) -> None:
        """A request was routed; `request_ended` follows for each."""
        ...

    def request_ended(self, outcome: RequestOutcome) -> None: ...

    def served_elsewhere(self) -> None: ...

    def body_read(self, duration_s: float) -> None: ...

    def body_not_inspected(self, reason: str) -> None: ...

    def model_rewritten(self, rewrite_name: str, model: str, target_model: str) -> None:
        """A rule gave a request for `model` the model `target_model`."""
        ...


class Bugs(Protocol):
    """Where a bug is reported: a log with the stack."""

    def exception(self, event: str, **fields: object) -> object: ...


class Warnings(Protocol):
    """Where something that an operator should know is reported."""

    def warning(self, event: str, **fields: object) -> object: ...


class WarnOnce:
    """Warns of each thing once in the life of the process."""

    def __init__(self, log: Warnings) -> None:
        self._log = log
        self._told: set[str] = set()

    def __call__(self, event: str) -> None:
        """Warn of `event`, one of a few sentences, unless that was done before."""
        if event not in self._told:
            self._told.add(event)
            self._log.warning(event)


def _keep_quiet(_: str) -> None:
    """Nobody wants to know."""


def _no_rewrites() -> ModelRewrites:
    return ModelRewrites(random.Random())  # noqa: S311 — chooses models, guards nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What all ext_proc sessions share.

    Attributes:
        pick: Decides and counts; raises PickError.
        budget: Bytes held over all sessions.
        next_request_id: Names a request whose client sent no `x-request-id`.
        rewrites: Which models requests get instead of those they name; no rules unless given.
        objectives: Priorities of the objectives that requests name; None where there can be none: nobody looks for names then.
        warn_once: Told of what an operator should know; may be called with one sentence again and again (`WarnOnce`).
    """

    pick: Callable[[InferenceRequest], SessionPick]
    clock: Clock
    observer: SessionObserver
    bugs: Bugs
    limits: LimitSettings
    requests: RequestSettings
    budget: BufferBudget
    next_request_id: Callable[[], str]
    rewrites: ModelRewrites = field(default_factory=_no_rewrites)
    objectives: Objectives | None = None
    warn_once: Callable[[str], None] = _keep_quiet
