"""What the times of pod, hook and engine, as they are, would lose. No input or output here."""

import math
from collections.abc import Iterator

from epp.drain.advice import Need, Present, say
from epp.drain.shutdown import AtSigterm


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
    engine = need.engine
    if present.sleep_s is None or present.covers(need) or engine.at_sigterm is AtSigterm.FINISHED:
        return
    if engine.deadline is None:
        yield (
            f"--pre-stop: expected hook or a sleep of at least {say(need.last_request_s)}, found {say(present.sleep_s)}: "
            f"{engine.title} has no flag that lets requests finish; at SIGTERM they {engine.running}"
        )
        return
    deadline_s = engine.deadline.default_s if present.deadline_s is None else present.deadline_s
    if deadline_s < need.slowest_s:
        source = ", the default" if present.deadline_s is None else ""
        yield (
            f"--shutdown-timeout: expected at least {say(need.slowest_s)} ({engine.deadline.name} of {engine.title}), found "
            f"{say(deadline_s)}{source}: no hook waits for running requests, and at SIGTERM they {engine.running}"
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
