"""Combinations that lose requests are named, with what is lost and what to set; those that do not are not."""

import pytest

from epp.drain.advice import Need
from epp.drain.losses import Present, losses
from epp.drain.shutdown import ENGINES, LLAMACPP, OLLAMA, SGLANG, TGI, TRITON, VLLM, EngineShutdown

SLOWEST_S = 120.0


def lost(engine: EngineShutdown, present: Present, slowest_s: float = SLOWEST_S) -> list[str]:
    return list(losses(Need(engine=engine, slowest_s=slowest_s), present))


def flags(sentences: list[str]) -> list[str]:
    return [sentence.partition(":")[0] for sentence in sentences]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_no_hook_at_all_loses_what_comes_before_routers_know(engine: EngineShutdown) -> None:
    sentence = lost(engine, Present(sleep_s=0.0, deadline_s=300.0 if engine.deadline else None))[0]

    assert sentence.startswith("--pre-stop: expected hook or a sleep of at least 5s, found no hook: ")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_a_sleep_shorter_than_routers_need_is_refused(engine: EngineShutdown) -> None:
    assert "found a sleep of 4s" in lost(engine, Present(sleep_s=4.0))[0]
    assert not any("a sleep of at least 5s" in each for each in lost(engine, Present(sleep_s=5.0)))


def test_vllm_without_its_own_deadline_needs_a_hook_that_waits() -> None:
    (sentence,) = lost(VLLM, Present(sleep_s=10.0, grace_s=200.0))

    assert sentence.startswith(
        "--shutdown-timeout: expected at least 120s (--shutdown-timeout of vLLM), found 0s: that is the default, "
    )
    assert lost(VLLM, Present(sleep_s=10.0, grace_s=200.0, deadline_s=120.0)) == []
    assert lost(VLLM, Present(grace_s=200.0)) == []


@pytest.mark.parametrize(("engine", "default_s"), [(TRITON, 30.0), (TGI, 90.0)])
def test_a_default_deadline_is_enough_for_requests_that_are_faster(engine: EngineShutdown, default_s: float) -> None:
    assert lost(engine, Present(sleep_s=10.0), slowest_s=default_s) == []
    assert flags(lost(engine, Present(sleep_s=10.0), slowest_s=default_s + 1)) == ["--shutdown-timeout"]


@pytest.mark.parametrize("engine", [LLAMACPP, OLLAMA])
def test_engines_that_cannot_wait_need_the_hook_or_a_sleep_over_the_slowest_request(engine: EngineShutdown) -> None:
    (sentence,) = lost(engine, Present(sleep_s=124.0))

    assert sentence.startswith("--pre-stop: expected hook or a sleep of at least 125s, found 124s: ")
    assert lost(engine, Present(sleep_s=125.0)) == []


def test_the_grace_period_holds_a_sleep_and_the_slowest_request() -> None:
    def present(grace_s: float) -> Present:
        return Present(sleep_s=10.0, grace_s=grace_s, deadline_s=120.0)

    assert flags(lost(VLLM, present(129.0))) == ["--grace"]
    assert lost(VLLM, present(130.0)) == []


def test_the_grace_period_of_sglang_holds_a_look_of_its_watchdog_too() -> None:
    (sentence,) = lost(SGLANG, Present(sleep_s=10.0, grace_s=134.0))

    assert sentence.startswith(
        "--grace: expected at least 135s (10s of the hook, 120s of the slowest request, 5s between two looks"
    )
    assert lost(SGLANG, Present(sleep_s=10.0, grace_s=135.0)) == []


def test_the_default_grace_period_is_too_short_for_the_hook() -> None:
    (sentence,) = lost(VLLM, Present(grace_s=30.0))

    assert sentence == (
        "--grace: expected at least 128s (128s of the hook), found 30s: SIGKILL cuts the requests that still run then"
    )


def test_the_grace_period_holds_all_that_the_hook_may_wait() -> None:
    assert flags(lost(VLLM, Present(grace_s=150.0, max_wait_s=160.0))) == ["--grace"]
    assert lost(VLLM, Present(grace_s=160.0, max_wait_s=160.0)) == []


def test_a_hook_that_gives_up_before_the_slowest_request_has_ended_is_refused() -> None:
    (sentence,) = lost(VLLM, Present(max_wait_s=127.0))

    assert sentence.startswith("--max-wait: expected at least 128s, found 127s: ")
    assert lost(VLLM, Present(max_wait_s=128.0)) == []


@pytest.mark.parametrize("engine", [VLLM, TRITON, TGI, ENGINES["nim"]], ids=lambda engine: engine.name)
def test_a_deadline_shorter_than_the_slowest_request_is_no_second_net(engine: EngineShutdown) -> None:
    (sentence,) = lost(engine, Present(deadline_s=119.0))

    assert sentence.startswith("--shutdown-timeout: expected at least 120s ")
    assert "neither picker nor metrics" in sentence
    assert lost(engine, Present(deadline_s=120.0)) == []
    assert lost(engine, Present()) == []


def test_a_long_sleep_needs_no_more_than_itself() -> None:
    assert lost(VLLM, Present(sleep_s=125.0, grace_s=125.0, deadline_s=0.0)) == []
    assert flags(lost(VLLM, Present(sleep_s=125.0, grace_s=124.0))) == ["--grace"]


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert flags(lost(VLLM, Present(sleep_s=0.0, grace_s=30.0))) == ["--pre-stop", "--shutdown-timeout", "--grace"]
