"""Everything that one run of the bench found, as a table's lines and as JSON."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.bench import cases
from tests.bench.cases import LOAD_CASES, LoadCase
from tests.bench.load import percentile
from tests.bench.parts import WHOLE_REQUEST, WHOLE_SCRAPE
from tests.bench.pod_changes import DeletionRun, ListRun
from tests.bench.through_envoy import IdleRun, LoadRun
from tests.bench.timing import PartCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the result.

    Attributes:
        value: As measured.
        shown: The value with its unit, for people.
        goal: For people; empty where there is none.
        met: None where there is no goal.
        detail: What the value is made of.
    """

    name: str
    value: float
    shown: str
    goal: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Results:
    """What was measured so far.

    Attributes:
        starts_s: How long each start with 100 endpoints took.
        rest_mib: Resident memory of the endpoint picker with 8 endpoints before the first round.
        round_end_mib: The same after each round of all load cases.
    """

    loads: list[LoadRun] = field(default_factory=list)
    idle: IdleRun | None = None
    starts_s: list[float] = field(default_factory=list)
    parts: list[PartCost] = field(default_factory=list)
    rest_mib: float | None = None
    round_end_mib: list[float] = field(default_factory=list)
    deletions: list[DeletionRun] = field(default_factory=list)
    lists: list[ListRun] = field(default_factory=list)

    @property
    def failed(self) -> dict[str, int]:
        """Requests that did not end well, by case and reason."""
        reasons: dict[str, int] = {}
        for run in self.loads:
            for reason, count in run.failed.items():
                key = f"{run.case}: {reason}"
                reasons[key] = reasons.get(key, 0) + count
        return reasons

    def figures(self) -> Iterator[Figure]:
        """The lines of the result, in the order of the goals."""
        measured = [(case, [run for run in self.loads if run.case == case.name]) for case in LOAD_CASES]
        for case, runs in measured:
            if runs:
                yield _ratio(case, runs)
        if self.idle is not None:
            yield _idle(self.idle)
        for case, runs in measured:
            if runs:
                yield from _latency(case, runs)
        yield from self._memory()
        if self.starts_s:
            yield _start(self.starts_s)
        for deletion in self.deletions:
            yield from _deletions(deletion)
        for one in self.lists:
            yield from _lists(one)
        for part in self.parts:
            yield _part(part)
        yield from self._rest_of_cost()

    def _memory(self) -> Iterator[Figure]:
        if self.rest_mib is not None:
            yield _rest(cases.LOAD_ENDPOINTS, self.rest_mib)
        if self.idle is not None:
            yield _rest(self.idle.endpoints, self.idle.rss_mib)
        ends = self.round_end_mib
        if not ends:
            return
        shown = f"{ends[-1]:.0f} MiB"
        detail = f"after each round: {', '.join(f'{mib:.1f}' for mib in ends)}"
        if len(ends) == 1:
            yield Figure(name="memory after load", value=ends[-1], shown=shown, detail="one round cannot show growth")
        else:
            met = ends[-1] <= ends[0] * cases.FLAT_RATIO
            yield Figure(name="memory after load", value=ends[-1], shown=shown, goal="flat", met=met, detail=detail)

    def _rest_of_cost(self) -> Iterator[Figure]:
        """What the microbenchmarks do not explain: the transport, and waking up for sockets."""
        by_name = {part.name: part.median_us for part in self.parts}
        for case in LOAD_CASES:
            runs = [run for run in self.loads if run.case == case.name]
            inside_us = by_name.get(f"{WHOLE_REQUEST}, {case.name}")
            if runs and inside_us is not None:
                without_idle_us = _without_idle_ms(runs) * 1000
                yield Figure(
                    name=f"transport and the rest, a request, {case.name}",
                    value=without_idle_us - inside_us,
                    shown=f"{without_idle_us - inside_us:.0f} µs",
                    detail=f"{without_idle_us:.0f} µs through Envoy − {inside_us:.0f} µs of {WHOLE_REQUEST}",
                )
        if self.idle is not None and self.idle.scrapes_per_s and WHOLE_SCRAPE in by_name:
            scrape_us = self.idle.cores / self.idle.scrapes_per_s * 1e6
            inside_us = by_name[WHOLE_SCRAPE]
            yield Figure(
                name="network and waking up, a scrape",
                value=scrape_us - inside_us,
                shown=f"{scrape_us - inside_us:.0f} µs",
                detail=f"{scrape_us:.0f} µs idle cost a scrape − {inside_us:.0f} µs of {WHOLE_SCRAPE}",
            )

    def as_json(self) -> dict[str, Any]:
        """All figures and what they were made of."""
        raw = {
            "loads": self.loads,
            "idle": self.idle,
            "starts_s": self.starts_s,
            "parts": self.parts,
            "rest_mib": self.rest_mib,
            "round_end_mib": self.round_end_mib,
            "deletions": self.deletions,
            "lists": self.lists,
        }
        return {"figures": msgspec.to_builtins(list(self.figures())), "measured": msgspec.to_builtins(raw)}


def _ratio(case: LoadCase, runs: Sequence[LoadRun]) -> Figure:
    requests = max(sum(run.full.ok for run in runs), 1)
    epp_ms = sum(run.epp_cpu_s for run in runs) / requests * 1000
    envoy_ms = sum(run.envoy_cpu_s for run in runs) / requests * 1000
    ratio = epp_ms / max(envoy_ms, 1e-9)
    rate = statistics.median(run.full.requests_per_s for run in runs)
    each = " ".join(f"{run.ratio:.2f}" for run in runs)
    return Figure(
        name=f"EPP / Envoy CPU, {case.name}",
        value=ratio,
        shown=f"{ratio:.2f}",
        goal=f"≤ {case.goal_ratio:g}",
        met=ratio <= case.goal_ratio,
        detail=f"{epp_ms:.3f} / {envoy_ms:.3f} ms a request ({_without_idle_ms(runs):.3f} ms without idle cost); "
        f"{rate:.0f} requests/s; rounds {each}",
    )


def _without_idle_ms(runs: Sequence[LoadRun]) -> float:
    """The EPP's CPU time for one request, without what it uses when there is none."""
    used_s = sum(run.epp_cpu_s - run.idle_cores * run.took_s for run in runs)
    return used_s / max(sum(run.full.ok for run in runs), 1) * 1000


def _latency(case: LoadCase, runs: Sequence[LoadRun]) -> Iterator[Figure]:
    for part in ("p50", "p99"):
        through = [ms for run in runs if (ms := getattr(run.half, f"{part}_ms")) is not None]
        without = [ms for run in runs if (ms := getattr(run.plain, f"{part}_ms")) is not None]
        if not through or not without:
            continue
        ms, plain_ms = statistics.median(through), statistics.median(without)
        rate = statistics.median(run.half.requests_per_s for run in runs)
        has_goal = part == "p99" and case.name == "small"
        yield Figure(
            name=f"{part} through Envoy, {case.name}",
            value=ms,
            shown=f"{ms:.1f} ms",
            goal=f"≤ {cases.GOAL_P99_MS:g} ms" if has_goal else "",
            met=ms <= cases.GOAL_P99_MS if has_goal else None,
            detail=f"{plain_ms:.1f} ms without EPP, so {ms - plain_ms:.1f} added; at {rate:.0f} requests/s",
        )


def _idle(run: IdleRun) -> Figure:
    return Figure(
        name=f"idle, {run.endpoints} endpoints",
        value=run.cores,
        shown=f"{run.cores:.3f} cores",
        goal=f"≤ {cases.GOAL_IDLE_CORES:g}",
        met=run.cores <= cases.GOAL_IDLE_CORES,
        detail=f"{run.scrapes_per_s:.0f} scrapes/s",
    )


def _start(starts_s: Sequence[float]) -> Figure:
    start_s = statistics.median(starts_s)
    return Figure(
        name=f"start to ready, {cases.MANY_ENDPOINTS} endpoints",
        value=start_s,
        shown=f"{start_s:.2f} s",
        goal=f"< {cases.GOAL_START_S:g} s",
        met=start_s < cases.GOAL_START_S,
        detail=f"each: {' '.join(f'{one:.2f}' for one in starts_s)}",
    )


def _rest(endpoints: int, mib: float) -> Figure:
    limit = cases.GOAL_REST_MIB
    return Figure(
        name=f"memory at rest, {endpoints} endpoints",
        value=mib,
        shown=f"{mib:.0f} MiB",
        goal=f"< {limit:g} MiB",
        met=mib < limit,
    )


def _deletions(run: DeletionRun) -> Iterator[Figure]:
    for part in (50, 99):
        ms = percentile(run.from_request_ms, part)
        yield Figure(
            name=f"deletion mark to last pick, {run.pods} pods, p{part}",
            value=ms,
            shown=f"{ms:.1f} ms",
            detail=f"{percentile(run.from_answer_ms, part):.1f} ms from the API server's answer; "
            f"picks without a hint {percentile(run.plain_ms, part):.1f} ms; "
            f"{len(run.from_request_ms)} deletions, {run.picks_per_s:.0f} picks/s",
        )


def _lists(run: ListRun) -> Iterator[Figure]:
    for part in (50, 99):
        ms = percentile(run.during_ms, part)
        has_goal = part == 99
        yield Figure(
            name=f"pick while {run.pods} pods are listed, p{part}",
            value=ms,
            shown=f"{ms:.1f} ms",
            goal=f"< {cases.GOAL_LIST_P99_MS:g} ms" if has_goal else "",
            met=ms < cases.GOAL_LIST_P99_MS if has_goal else None,
            detail=f"{percentile(run.outside_ms, part):.1f} ms otherwise; {run.lists} lists of {statistics.median(run.list_ms):.0f} ms, "
            f"{len(run.during_ms)} picks in them; longest {run.during_ms[-1]:.1f} ms, otherwise {run.outside_ms[-1]:.1f} ms",
        )


def _part(part: PartCost) -> Figure:
    return Figure(
        name=part.name,
        value=part.median_us,
        shown=f"{part.median_us:.1f} µs",
        goal="" if part.goal_us is None else f"< {part.goal_us:g} µs",
        met=None if part.goal_us is None else part.median_us < part.goal_us,
        detail=f"p99 {part.p99_us:.1f} µs of {part.calls} calls",
    )
