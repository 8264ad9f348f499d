"""Which times of pod, hook and engine fit together, why, and what is lost when they do not. No input or output here.

What happens when a pod is deleted: the kubelet starts the clock of `terminationGracePeriodSeconds` and runs the preStop hook;
when that ends it sends SIGTERM; when the clock runs out, SIGKILL. At the same moment, not before it, routers begin to hear of
the deletion.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from epp.drain.shutdown import AtSigterm, EngineShutdown

ENVOY_IDLE_S = 4.0
"""How long Envoy should keep an idle connection to a model server: less than any router needs to hear of an end."""
SLACK_S = 10.0
"""For slow scrapes, late starts of hooks and rounding, once in the hook's time and once in the pod's."""
DEADLINE_MARGIN_S = 2.0
"""How much longer than the slowest request the engine's own deadline is."""
DEFAULT_MIN_WAIT_S = 5.0
DEFAULT_INTERVAL_S = 1.0
DEFAULT_IDLE_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is asked for.

    Attributes:
        slowest_s: How long the slowest request takes, from its first byte to the last one of its answer, in seconds.
        min_wait_s: How long routers may need to hear that a server goes, in seconds.
        interval_s: Time between two looks at the load, in seconds.
        idle_samples: How many looks in a row have to find it idle.
    """

    engine: EngineShutdown
    slowest_s: float
    min_wait_s: float = DEFAULT_MIN_WAIT_S
    interval_s: float = DEFAULT_INTERVAL_S
    idle_samples: int = DEFAULT_IDLE_SAMPLES

    @property
    def confirm_s(self) -> float:
        """How long it takes to believe that the server is idle: all samples, over more than its page may lag behind."""
        return max(self.idle_samples * self.interval_s, self.engine.page_lag_s + self.interval_s)

    @property
    def last_request_s(self) -> float:
        """When the last request has ended at the latest, in seconds after the deletion: it came just before routers knew."""
        return self.min_wait_s + self.slowest_s


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to set.

    Attributes:
        name: Where it is set.
        value: As it is written there.
        why: One sentence.
    """

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Times that fit together, in whole seconds.

    Attributes:
        deadline_s: For the engine's own deadline; None where it has no such flag.
        settings: All that has to be set, with reasons.
        remarks: What else has to be known.
    """

    min_wait_s: float
    max_wait_s: int
    grace_s: int
    deadline_s: int | None
    settings: tuple[Setting, ...]
    remarks: tuple[str, ...]


def advise(need: Need) -> Advice:
    """What to set, so that no request that takes up to `need.slowest_s` is lost."""
    engine = need.engine
    max_wait_s = math.ceil(need.last_request_s + need.confirm_s + SLACK_S)
    deadline_s = None if engine.deadline is None else math.ceil(need.slowest_s + DEADLINE_MARGIN_S)
    grace_s = max_wait_s + math.ceil(_end_s(engine, deadline_s) + SLACK_S)
    return Advice(
        min_wait_s=need.min_wait_s,
        max_wait_s=max_wait_s,
        grace_s=grace_s,
        deadline_s=deadline_s,
        settings=tuple(_settings(need, max_wait_s, grace_s, deadline_s)),
        remarks=tuple(_remarks(need)),
    )


def _end_s(engine: EngineShutdown, deadline_s: int | None) -> float:
    """From SIGTERM to the end of the process when no request is left."""
    if engine.deadline is not None and deadline_s is not None and engine.deadline.waits_for_connections:
        return float(deadline_s)
    return engine.end_s


def hook_command(need: Need, max_wait_s: int) -> str:
    """The preStop hook, as it is written in a shell."""
    words = [
        "epp drain",
        f"--engine {need.engine.name}",
        f"--min-wait {say(need.min_wait_s)}",
        f"--max-wait {say(max_wait_s)}",
    ]
    if need.interval_s != DEFAULT_INTERVAL_S:
        words.append(f"--interval {say(need.interval_s)}")
    if need.idle_samples != DEFAULT_IDLE_SAMPLES:
        words.append(f"--idle-samples {need.idle_samples}")
    return " ".join(words)


def _settings(need: Need, max_wait_s: int, grace_s: int, deadline_s: int | None) -> Iterator[Setting]:
    engine, flag = need.engine, need.engine.deadline
    end = f"the {engine.end_s:g} s ({'measured' if engine.end_seen else 'estimated'}) that an idle {engine.title} takes to end"
    if flag is not None and flag.waits_for_connections:
        end = f"the {deadline_s} s of {flag.name}, all of which go by while a client keeps a connection open"
    yield Setting(
        "terminationGracePeriodSeconds",
        str(grace_s),
        f"the hook's {max_wait_s} s, {end}, and {SLACK_S:g} s of slack; it costs nothing, as a pod that is done ends at once",
    )
    yield Setting("preStop", hook_command(need, max_wait_s), _why_the_hook(need, max_wait_s))
    if flag is not None and deadline_s is not None:
        otherwise = "nothing is waited for" if flag.default_s == 0 else f"{flag.default_s:g} s are"
        yield Setting(
            flag.variable or "engine flag",
            flag.written(deadline_s),
            f"a second net for when the hook cannot see the load; without it {otherwise} after SIGTERM, and the slowest "
            f"request takes {say(need.slowest_s)}",
        )
    for each in engine.metrics_flags:
        yield Setting("engine flag", each, "without it the server tells no load, and the hook has the picker's count alone")
    yield Setting(
        "idle_timeout of Envoy's cluster",
        say(ENVOY_IDLE_S),
        f"so that no kept connection is left when SIGTERM comes, {say(need.min_wait_s)} after the deletion at the earliest; a "
        f"request that comes later {engine.arriving}",
    )


def _why_the_hook(need: Need, max_wait_s: int) -> str:
    so = (
        "so SIGTERM has to come when nothing runs"
        if need.engine.at_sigterm is AtSigterm.LOST
        else "but SIGTERM must not come before routers know"
    )
    return (
        f"at SIGTERM requests here {need.engine.running}; {so}: {say(need.min_wait_s)} until routers know, "
        f"{say(need.slowest_s)} for the slowest request, {say(need.confirm_s)} to be sure that it is idle, and {SLACK_S:g} s "
        f"of slack make {max_wait_s} s at most"
    )


def _remarks(need: Need) -> Iterator[str]:
    engine = need.engine
    if not engine.has_load:
        yield f"{engine.title} tells no load: without --epp-url the hook waits --min-wait alone, and running requests are lost"
    if engine.page_freezes:
        yield f"{engine.title} renews its gauges when a request ends, and may say idle while one runs: give the hook --epp-url"
    if engine.page_lag_s >= 1:
        lag = f"may show an earlier load for {engine.page_lag_s:g} s"
        yield f"{engine.title} {lag}; the hook believes in idle after {say(need.confirm_s)} of it"
    if need.min_wait_s <= ENVOY_IDLE_S:
        yield f"--min-wait {say(need.min_wait_s)} is no longer than the {say(ENVOY_IDLE_S)} that Envoy keeps idle connections"


def say(seconds: float) -> str:
    """A duration as flags take it."""
    return f"{seconds:g}s"
