"""What makes an engine that engine: its traits, its pages, its errors, its manners at start and stop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import msgspec

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.exposition import HistogramBoard, HistogramFamily
from epp.sim.http_counters import HttpCounters
from epp.sim.job import JobTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that is ready at once.

    Attributes:
        delay_s: How long the engine takes for it.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def json_reply(body: object, status: int = 200, **headers: str) -> Reply:
    """A reply with a JSON body; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=msgspec.json.encode(body), headers=named)


class ServerStatus(Enum):
    """Where the server stands."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    """SIGTERM came."""


class WhileLoading(Enum):
    """What a client meets before the model is loaded."""

    REFUSED = "refused"
    SILENT = "silent"
    """The kernel takes the connection; nobody answers until the model is loaded."""
    ANSWERED = "answered"
    """The engine's `loading_reply` answers."""


class AtStop(Enum):
    """What SIGTERM does to running and waiting requests."""

    FINISH = "finish"
    ABORT = "abort"
    """Answered 500 at once."""
    CUT = "cut"
    """Their connections are closed at once."""
    HANG = "hang"
    """They never get another byte; the process stays until their clients leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStyle:
    """What SIGTERM does.

    Attributes:
        at_stop: To requests that are there.
        listener_closes: New connections are refused at once.
        kept_connections_close: Idle connections are closed at once.
        new_requests_fail: Requests on open connections get 500.
        waits_for_connections: Being idle is not enough to exit; every connection has to be gone.
        deadline_s: When what is left is cut, in seconds after the signal; None is never.
        idle_check_s: Whether it is idle is looked at this often only; None is always.
        second_signal_exits: Another SIGTERM ends the process at once; else it does nothing.
    """

    at_stop: AtStop = AtStop.FINISH
    listener_closes: bool = True
    kept_connections_close: bool = True
    new_requests_fail: bool = False
    waits_for_connections: bool = False
    deadline_s: float | None = None
    idle_check_s: float | None = None
    second_signal_exits: bool = False


class Refresh(Enum):
    """When an engine's gauges are brought up to date, apart from every `Traits.refresh_s` seconds."""

    NEVER = "never"
    ON_PREFILL_AND_IDLE = "on prefill and idle"
    ON_FINISH = "on finish"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The fixed facts of an engine.

    Attributes:
        name: As in `--engine`.
        owned_by: In /v1/models.
        metrics_paths: Where the metrics page is.
        reserved_blocks: KV blocks that no request can use.
        while_loading: What a client meets before the model is loaded.
        refresh: When gauges are brought up to date.
        refresh_s: And how often besides; None is not at all.
        checks_model: Whether a model name it does not know is refused.
        headers_at_first_token: Whether a stream's headers wait for its first token.
        load_headers: Whether it reports load in response headers when asked to (ORCA).
        loads_at_first_request: Whether the model is loaded by the first request instead of at start.
        page_stays_when_disabled: Whether there is a page, without the engine's families, when metrics are off.
        metrics_wait_for_batch_tokens: The page waits until prompt batches of this size are done; None does not wait.
    """

    name: str
    owned_by: str
    metrics_paths: tuple[str, ...] = ("/metrics",)
    reserved_blocks: int = 0
    while_loading: WhileLoading = WhileLoading.REFUSED
    refresh: Refresh = Refresh.ALWAYS
    refresh_s: float | None = None
    checks_model: bool = False
    headers_at_first_token: bool = False
    load_headers: bool = False
    loads_at_first_request: bool = False
    page_stays_when_disabled: bool = False
    metrics_wait_for_batch_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What pages are made from.

    Attributes:
        gauges: The engine as it was when its gauges were last brought up to date; None before that.
        live: The engine as it is.
        gauges_at_wall_s: Unix time of `gauges`.
        wall_s: Unix time now.
        started_wall_s: Unix time of the server's start.
        query: Of the request.
    """

    status: ServerStatus
    gauges: EngineState | None
    live: EngineState
    gauges_at_wall_s: float
    wall_s: float
    started_wall_s: float
    http: HttpCounters
    query: Mapping[str, str]


Page = Callable[[View], Reply]


class Engine(ABC):
    """One engine's manners. An object of it belongs to one server and may remember things for its pages."""

    traits: ClassVar[Traits]

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.board = HistogramBoard(self.histograms())
        self.refresh_s = self.traits.refresh_s

    def histograms(self) -> Iterable[HistogramFamily]:
        """Histograms of finished requests."""
        return ()

    def observe(self, times: JobTimes) -> None:
        """A request finished."""
        self.board.observe(times)

    def note(self, state: EngineState, wall_s: float) -> None:  # noqa: B027, most engines take no notes
        """Something happened in the model."""

    def used(self, wall_s: float) -> None:  # noqa: B027, most engines do not care
        """A request came or ended."""

    def loaded(self, wall_s: float) -> bool:
        """Whether a request finds the model in memory."""
        return True

    @property
    def watches(self) -> bool:
        """Whether `note` wants to be called."""
        return False

    def answer_headers(self, times: JobTimes) -> Mapping[str, str]:
        """Headers of an answer that is not streamed."""
        return {}

    @abstractmethod
    def metrics(self, view: View) -> Reply:
        """The metrics page."""

    def metrics_disabled(self) -> Reply:
        """The answer in place of a page that was not asked for at start."""
        return self.not_found()

    @abstractmethod
    def pages(self) -> Mapping[str, Page]:
        """Path → what GET answers there: health and what else the engine has of its own."""

    @abstractmethod
    def stop_style(self) -> StopStyle:
        """What SIGTERM does."""

    def loading_reply(self, path: str) -> Reply:
        """The answer to everything while the model is loaded, where the engine answers then."""
        return self.error(503, "The model is being loaded", "ServiceUnavailableError")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        """An error in the engine's own shape."""
        return json_reply({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)

    def queue_full(self) -> Reply:
        """A request that found the queue full."""
        return self.error(503, "The request queue is full.", "ServiceUnavailableError")

    def not_found(self) -> Reply:
        """A path that the engine does not have."""
        return json_reply({"detail": "Not Found"}, 404)

    def unknown_model(self, model: str) -> Reply:
        """A model that is not served here."""
        return self.error(404, f"The model `{model}` does not exist.", "NotFoundError", "model")

    def load_headers(self, state: EngineState) -> Mapping[str, float]:
        """Named metrics for the response header `endpoint-load-metrics`."""
        return {}

    def models(self, created: int) -> list[dict[str, Any]]:
        """Entries of /v1/models."""
        base = [self.model_entry(name, created, parent=None) for name in self.config.served_model_names]
        lora = [self.model_entry(name, created, parent=self.config.model_name) for name in self.config.lora_adapters]
        return base + lora

    def model_entry(self, name: str, created: int, *, parent: str | None) -> dict[str, Any]:
        """One entry of /v1/models."""
        return {"id": name, "object": "model", "created": created, "owned_by": self.traits.owned_by}
