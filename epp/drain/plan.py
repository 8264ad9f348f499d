"""What one `epp drain` is to do, as values."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCondition:
    """One condition on a label of a series.

    Attributes:
        operator: `=`, `!=`, `=~` or `!~`, as in PromQL.
    """

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesTerm:
    """The series of one name that fulfil every condition."""

    name: str
    conditions: tuple[LabelCondition, ...] = ()


Alternatives = tuple[tuple[SeriesTerm, ...], ...]
"""Tried in order until one is on the page; the terms of one are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """One page that tells the load.

    Attributes:
        url: Whole.
        counted_member: For a JSON page: each time that this member is true is a running request. None for an exposition.
    """

    url: str
    counted_member: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlan:
    """Where an engine tells its load, and in which words.

    Attributes:
        sources: Tried in order until one can be read.
        replica_labels: Labels whose series tell the same again: the highest counts.
        server_known: Whether anyone said where the server is, so that its port means something.
        blank_is_idle: An empty page means that there was no request yet.
        lag_s: So long a page may go on showing an earlier state.
        freezes: A page may show idle for as long as one request takes.
    """

    sources: tuple[PageSource, ...] = ()
    waiting: Alternatives = ()
    running: Alternatives = ()
    replica_labels: frozenset[str] = frozenset()
    server_known: bool = True
    blank_is_idle: bool = False
    lag_s: float = 0.0
    freezes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    """One wait.

    Attributes:
        url: The model server, without a path.
        picker_urls: Admin ports of endpoint pickers, without a path.
        endpoints: `ip:port` of this server, as the endpoint pickers name it; empty for the script to find out itself.
        token_file: File with the admin token; None for none.
        keep_s: How long an endpoint picker remembers the mark after the last call.
        call_s: Most one call may take, in all.
    """

    engine: str
    url: str
    page: PagePlan = field(default_factory=PagePlan)
    picker_urls: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    token_file: str | None = None
    min_wait_s: float = 5.0
    max_wait_s: float = 120.0
    interval_s: float = 1.0
    idle_samples: int = 3
    keep_s: float = 600.0
    call_s: float = 2.0
    log_file: str | None = None
