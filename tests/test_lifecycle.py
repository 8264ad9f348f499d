"""Where the process stands, and when its drain is over."""

import pytest

from epp.lifecycle import QUIET_S, DrainWait, Lifecycle, Phase


def test_readiness_comes_and_goes_and_liveness_goes_last() -> None:
    lifecycle = Lifecycle()
    seen = [(lifecycle.live, lifecycle.ready)]
    for phase in (Phase.SERVING, Phase.DRAINING, Phase.STOPPED):
        lifecycle.enter(phase)
        seen.append((lifecycle.live, lifecycle.ready))
    assert seen == [(True, False), (True, True), (True, False), (False, False)]


def test_listeners_hear_each_change_once_until_they_are_forgotten() -> None:
    lifecycle = Lifecycle()
    heard: list[Phase] = []
    lifecycle.on_change(heard.append)
    lifecycle.enter(Phase.SERVING)
    lifecycle.enter(Phase.SERVING)
    lifecycle.forget(heard.append)
    lifecycle.enter(Phase.DRAINING)
    assert heard == [Phase.SERVING]


def test_forgetting_a_listener_does_not_look_at_the_others() -> None:
    """Thirty thousand health streams that end together must not hold up the loop."""

    class Listener:
        compared = 0

        def __call__(self, phase: Phase) -> None: ...

        def __hash__(self) -> int:
            return id(self)

        def __eq__(self, other: object) -> bool:
            Listener.compared += 1
            return self is other

    lifecycle = Lifecycle()
    listeners = [Listener() for _ in range(100)]
    for listener in listeners:
        lifecycle.on_change(listener)
    for listener in reversed(listeners):
        lifecycle.forget(listener)

    assert Listener.compared < 100


def test_going_back_is_a_bug() -> None:
    lifecycle = Lifecycle()
    lifecycle.enter(Phase.DRAINING)
    with pytest.raises(ValueError, match="expected a phase after draining, found serving"):
        lifecycle.enter(Phase.SERVING)


def test_the_drain_waits_for_quiet_and_not_for_the_first_idle_moment() -> None:
    """Field report 75: a stream opened 1 s after SIGTERM is still answered."""
    wait = DrainWait(100.0, timeout_s=30.0)
    assert not wait.is_over(101.0, open_streams=0)
    assert not wait.is_over(102.0, open_streams=1)
    assert not wait.is_over(102.0 + QUIET_S - 0.1, open_streams=0)
    assert wait.is_over(102.0 + QUIET_S, open_streams=0)


def test_the_drain_ends_at_its_timeout_whatever_runs() -> None:
    wait = DrainWait(100.0, timeout_s=5.0)
    assert not wait.is_over(104.9, open_streams=3)
    assert wait.is_over(105.0, open_streams=3)
