"""Times of pod, hook and engine that fit together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.drain.advice import ENVOY_IDLE_S, SLACK_S, Advice, Need, advise
from epp.drain.losses import Present, losses
from epp.drain.shutdown import ENGINES, LLAMACPP, LMDEPLOY, OLLAMA, SGLANG, TRITON, TRTLLM_SERVE, VLLM

ADVISED = {
    "vllm": (138, 168, 122),
    "sglang": (139, 169, None),
    "trtllm-serve": (138, 163, None),
    "triton-tensorrt-llm": (138, 270, 122),
    "llamacpp": (138, 153, None),
    "tgi": (138, 158, 122),
    "ollama": (138, 153, None),
    "lmdeploy": (146, 166, None),
    "nim": (138, 173, 122),
}
"""Engine → max-wait, grace period and the engine's own deadline for requests of up to 120 s, worked out by hand."""
needs = st.builds(
    Need,
    engine=st.sampled_from(list(ENGINES.values())),
    slowest_s=st.floats(0.1, 7200),
    min_wait_s=st.floats(0, 60),
    interval_s=st.floats(0.1, 30),
    idle_samples=st.integers(1, 10),
)


def of(advice: Advice, name: str) -> str:
    """The value of the only setting of that name."""
    (value,) = [setting.value for setting in advice.settings if setting.name == name]
    return value


def as_advised(need: Need) -> Present:
    """What is there when the advice was followed."""
    advice = advise(need)
    return Present(grace_s=advice.grace_s, max_wait_s=advice.max_wait_s, deadline_s=advice.deadline_s)


@pytest.mark.parametrize("name", ENGINES)
def test_the_times_for_requests_of_two_minutes(name: str) -> None:
    advice = advise(Need(engine=ENGINES[name], slowest_s=120.0))

    assert (advice.max_wait_s, advice.grace_s, advice.deadline_s) == ADVISED[name]


@given(needs)
def test_who_follows_the_advice_loses_nothing(need: Need) -> None:
    assert losses(need, as_advised(need)) == ()


@given(needs)
def test_the_times_contain_one_another(need: Need) -> None:
    advice = advise(need)

    assert advice.max_wait_s >= need.min_wait_s + need.slowest_s + need.idle_samples * need.interval_s
    assert advice.grace_s >= advice.max_wait_s + SLACK_S
    assert advice.deadline_s is None or advice.deadline_s > need.slowest_s


@given(needs, st.floats(1, 600))
def test_slower_requests_need_no_less(need: Need, more_s: float) -> None:
    slower = Need(
        engine=need.engine,
        slowest_s=need.slowest_s + more_s,
        min_wait_s=need.min_wait_s,
        interval_s=need.interval_s,
        idle_samples=need.idle_samples,
    )

    assert advise(slower).grace_s >= advise(need).grace_s + math.floor(more_s)


def test_idle_is_believed_only_after_more_than_the_page_may_lag() -> None:
    assert Need(engine=VLLM, slowest_s=1.0).confirm_s == 3.0
    assert Need(engine=LMDEPLOY, slowest_s=1.0).confirm_s == 11.0
    assert Need(engine=LMDEPLOY, slowest_s=1.0, interval_s=5.0, idle_samples=4).confirm_s == 20.0


def test_the_settings_are_written_as_they_are_set() -> None:
    advice = advise(Need(engine=VLLM, slowest_s=120.0))

    assert of(advice, "terminationGracePeriodSeconds") == "168"
    assert of(advice, "preStop") == "epp drain --engine vllm --min-wait 5s --max-wait 138s"
    assert of(advice, "engine flag") == "--shutdown-timeout=122"
    assert of(advice, "idle_timeout of Envoy's cluster") == f"{ENVOY_IDLE_S:g}s"


def test_what_is_not_the_default_stands_in_the_hook() -> None:
    advice = advise(Need(engine=VLLM, slowest_s=10.0, interval_s=0.5, idle_samples=5))

    assert of(advice, "preStop").endswith(" --interval 0.5s --idle-samples 5")


def test_a_container_whose_arguments_are_not_the_engines_gets_a_variable() -> None:
    advice = advise(Need(engine=ENGINES["nim"], slowest_s=120.0))

    assert of(advice, "NIM_PASSTHROUGH_ARGS") == "--shutdown-timeout=122"


@pytest.mark.parametrize("name", ENGINES)
def test_every_setting_says_why_in_one_sentence(name: str) -> None:
    for setting in advise(Need(engine=ENGINES[name], slowest_s=120.0)).settings:
        assert setting.why
        assert "\n" not in setting.why
        assert not setting.why.endswith(".")


def test_whoever_has_no_metrics_without_a_flag_is_told_the_flag() -> None:
    assert of(advise(Need(engine=LLAMACPP, slowest_s=1.0)), "engine flag") == "--metrics"
    assert of(advise(Need(engine=SGLANG, slowest_s=1.0)), "engine flag") == "--enable-metrics"


def test_it_is_told_where_the_hook_sees_too_little_alone() -> None:
    assert "--epp-url" in advise(Need(engine=OLLAMA, slowest_s=1.0)).remarks[0]
    assert "--epp-url" in advise(Need(engine=TRTLLM_SERVE, slowest_s=1.0)).remarks[0]
    assert advise(Need(engine=VLLM, slowest_s=1.0)).remarks == ()


def test_a_wait_shorter_than_envoys_idle_connections_is_told() -> None:
    (remark,) = advise(Need(engine=VLLM, slowest_s=1.0, min_wait_s=2.0)).remarks
    assert "--min-wait 2s" in remark


def test_triton_gets_time_for_connections_that_clients_keep() -> None:
    (grace,) = [setting for setting in advise(Need(engine=TRITON, slowest_s=120.0)).settings if setting.value == "270"]
    assert "--exit-timeout-secs" in grace.why
