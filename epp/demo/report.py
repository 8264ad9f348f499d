"""The end of the demo in words and figures."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from epp.demo.fleet import ServerPlan
from epp.demo.picker_pages import PICK_DURATION, PickTimes
from epp.demo.table import percent, render_table, seconds
from epp.demo.tally import Crash, Drain, Ending, Outcome, Tally, complaints, quantile, seen

_HEADER = ("server", "engine", "requests", "share", "p50", "p99", "streams", "first p50", "first p99", "failed")


def server_table(tally: Tally, fleet: Sequence[ServerPlan]) -> list[str]:
    """One line for each server and their sum. `first` is the time to the first byte of a stream.

    A request that no server answered (Envoy said 503) has a line of its own, since nobody told the client who failed.
    """
    by_server = _by_server(tally)
    rows = [_row(plan.name, plan.engine, by_server[plan.name], len(tally)) for plan in fleet]
    if by_server[None]:
        rows.append(_row("(none)", "-", by_server[None], len(tally)))
    rows.append(_row("total", "", [outcome for outcomes in by_server.values() for outcome in outcomes], len(tally)))
    return render_table(_HEADER, rows, text_columns=2)


def engine_line(tally: Tally, fleet: Sequence[ServerPlan]) -> str:
    """Requests per engine."""
    by_server = _by_server(tally)
    engines = Counter[str]()
    for plan in fleet:
        engines[plan.engine] += len(by_server[plan.name])
    return "requests per engine: " + ", ".join(f"{engine} {count}" for engine, count in engines.items())


def _by_server(tally: Tally) -> defaultdict[str | None, list[Outcome]]:
    grouped: defaultdict[str | None, list[Outcome]] = defaultdict(list)
    for outcome in tally.outcomes:
        grouped[outcome.server].append(outcome)
    return grouped


def drain_lines(tally: Tally, drain: Drain) -> list[str]:
    """What the drain did to clients."""
    finished = [outcome for outcome in tally.answered(drain.server) if drain.window.holds(outcome.ended_at_s)]
    streams = sum(outcome.streaming for outcome in finished)
    lost = tally.failed(drain.window)
    idle = "never idle" if drain.idle_after_s is None else f"idle after {drain.idle_after_s:.1f} s"
    what = f"{len(finished)} requests finished on it meanwhile, {streams} of them streams"
    return [
        f"drain of {drain.server}: {what}; {idle}; process: {drain.process_ended}",
        f"  lost to the drain: {len(lost)}{_in_brackets(seen(lost))}",
    ]


def crash_lines(tally: Tally, crash: Crash) -> list[str]:
    """What the crash did to clients."""
    failed = tally.failed(crash.window)
    later = sum(outcome.began_at_s > crash.window.began_at_s for outcome in failed)
    back = "did not answer again" if crash.answered_after_s is None else f"answered again after {crash.answered_after_s:.1f} s"
    runs = f"ran again after {crash.restarted_after_s:.1f} s, {back}"
    lines = [
        f"crash of {crash.server}: {crash.in_flight_at_kill} requests were on it; {runs}",
        f"  errors in the crash: {len(failed)}{_in_brackets(seen(failed))}",
    ]
    if failed:
        after = f"{later} after it: until the picker had noticed, and its probes while the server was away"
        lines.append(f"  {len(failed) - later} of them were sent before the kill, {after}")
    return lines


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def decision_line(times: PickTimes | None) -> str:
    """How long the picker took to decide."""
    if times is None:
        return f"decision time: no {PICK_DURATION} on the metrics page"
    return (
        f"decision time: mean {seconds(times.mean_s)}, p50 at most {seconds(times.p50_at_most_s)}, "
        f"p99 at most {seconds(times.p99_at_most_s)} ({times.picks} picks, {PICK_DURATION})"
    )


def verdict_lines(tally: Tally, drain: Drain, crash: Crash) -> list[str]:
    """The last words, which agree with the exit code."""
    found = complaints(tally, drain, crash)
    if found:
        return ["FAILED", *(f"  {complaint}" for complaint in found)]
    return ["OK: nothing was lost to the drain, and every request got an answer or a clean error"]


def report(tally: Tally, drain: Drain, crash: Crash, times: PickTimes | None, fleet: Sequence[ServerPlan]) -> Iterable[str]:
    """All of it, line by line."""
    yield from server_table(tally, fleet)
    yield ""
    yield engine_line(tally, fleet)
    yield decision_line(times)
    yield from drain_lines(tally, drain)
    yield from crash_lines(tally, crash)
    yield f"hung: {sum(outcome.ending is Ending.HUNG for outcome in tally.outcomes)}"
    yield ""
    yield from verdict_lines(tally, drain, crash)


def _row(name: str, engine: str, outcomes: Sequence[Outcome], total: int) -> tuple[str, ...]:
    answered = [outcome for outcome in outcomes if outcome.ending is Ending.ANSWERED]
    durations = [outcome.duration_s for outcome in answered]
    firsts = [outcome.first_byte_s for outcome in answered if outcome.first_byte_s is not None]
    return (
        name,
        engine,
        str(len(outcomes)),
        percent(len(outcomes), total),
        seconds(quantile(durations, 0.5)),
        seconds(quantile(durations, 0.99)),
        str(sum(outcome.streaming for outcome in outcomes)),
        seconds(quantile(firsts, 0.5)),
        seconds(quantile(firsts, 0.99)),
        str(len(outcomes) - len(answered)),
    )
