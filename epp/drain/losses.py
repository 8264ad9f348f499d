"""What the times of pod, hook and engine, as they are, would lose. No input or output here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from epp.drain.advice import Need, say
from epp.drain.shutdown import AtSigterm


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What is there now; None is what nobody has said.

    Attributes:
        grace_s: `terminationGracePeriodSeconds`.
        sleep_s: What the preStop hook sleeps, 0 being no hook at all; None when the hook is `epp drain`.
        max_wait_s: The longest that `epp drain` waits.
        deadline_s: The engine's own deadline for running requests after SIGTERM.
    """

    grace_s: float | None = None
    sleep_s: float | None = None
    max_wait_s: float | None = None
    deadline_s: float | None = None

    def covers(self, need: Need) -> bool:
        """Whether the hook lasts until the last request has ended."""
        return self.sleep_s is None or self.sleep_s >= need.last_request_s


def losses(need: Need, present: Present) -> tuple[str, ...]:
    """One sentence for each thing that loses requests as it is now: where, what was expected, what was found, what is lost."""
    return (*_hook_losses(need, present), *_deadline_losses(need, present), *_grace_losses(need, present))


def _hook_losses(need: Need, present: Present) -> Iterator[str]:
    engine = need.engine
    shortest_s = need.last_request_s + need.confirm_s
    if present.sleep_s is not None and present.sleep_s < need.min_wait_s:
        there = "no hook" if present.sleep_s == 0 else f"a sleep of {say(present.sleep_s)}"
        watchdog = (
            f"; its watchdog ends an idle server up to {say(engine.look_s)} after SIGTERM all the same" if engine.look_s else ""
        )
        yield (
            f"--pre-stop: expected hook or a sleep of at least {say(need.min_wait_s)}, found {there}: routers go on sending "
            f"for {say(need.min_wait_s)}, and what comes after SIGTERM {engine.arriving}{watchdog}"
        )
    if present.sleep_s is None and present.max_wait_s is not None and present.max_wait_s < shortest_s:
        yield (
            f"--max-wait: expected at least {say(math.ceil(shortest_s))}, found {say(present.max_wait_s)}: the hook gives up "
            f"before the slowest request has ended, and requests that run at SIGTERM {engine.running}"
        )


def _deadline_losses(need: Need, present: Present) -> Iterator[str]:
    engine, flag, deadline_s, sleep_s = need.engine, need.engine.deadline, present.deadline_s, present.sleep_s
    if engine.at_sigterm is AtSigterm.FINISHED or (sleep_s is not None and present.covers(need)):
        return
    because = "no hook waits for running requests, and"
    if sleep_s is None:
        because = "a hook that reaches neither picker nor metrics waits --min-wait alone, and"
    elif flag is None:
        yield (
            f"--pre-stop: expected hook or a sleep of at least {say(need.last_request_s)}, found {say(sleep_s)}: "
            f"{engine.title} has no flag that lets requests finish; at SIGTERM they {engine.running}"
        )
    elif deadline_s is None:
        deadline_s, because = flag.default_s, f"that is the default, {because}"
    if flag is not None and deadline_s is not None and deadline_s < need.slowest_s:
        yield (
            f"--shutdown-timeout: expected at least {say(need.slowest_s)} ({flag.name} of {engine.title}), found "
            f"{say(deadline_s)}: {because} at SIGTERM they {engine.running}"
        )


def _grace_losses(need: Need, present: Present) -> Iterator[str]:
    if present.grace_s is None:
        return
    engine = need.engine
    if present.sleep_s is None:
        hook_s, rest_s = max(need.last_request_s + need.confirm_s, present.max_wait_s or 0.0), 0.0
    else:
        hook_s, rest_s = present.sleep_s, 0.0 if present.covers(need) else need.slowest_s
    parts = [f"{say(hook_s)} of the hook"]
    if rest_s:
        parts.append(f"{say(rest_s)} of the slowest request")
    if engine.look_s:
        parts.append(f"{say(engine.look_s)} between two looks of the watchdog of {engine.title}")
    expected_s = math.ceil(hook_s + rest_s + engine.look_s)
    if present.grace_s < expected_s:
        yield (
            f"--grace: expected at least {say(expected_s)} ({', '.join(parts)}), found {say(present.grace_s)}: SIGKILL cuts "
            "the requests that still run then"
        )
