"""Settings of a simulated server."""

import pytest

from epp.errors import ConfigError
from epp.sim.config import SimConfig


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"engine": "gpt"}, "engine: expected one of vllm, sglang,"),
        ({"slots": 0}, "slots: expected a number of at least 1, found 0"),
        ({"decode_tokens_per_s": 0.0}, "decode_tokens_per_s: expected a number of at least 0.001, found 0.0"),
        ({"prefill_tokens_per_s": float("nan")}, "prefill_tokens_per_s: expected a number of at least 0.001, found nan"),
        ({"port": 70000}, "port: expected a port from 0 to 65535, found 70000"),
        ({"served_model_names": ()}, "served_model_names: expected at least one name, none empty"),
        ({"metrics_path": "metrics"}, "metrics_path: expected a path that starts with /, found 'metrics'"),
        ({"lora_adapters": ("sim-model",)}, "lora_adapters: expected names that no model has, found sim-model"),
        ({"engine": "tgi", "shutdown_timeout_s": 1.0}, "shutdown_timeout_s: expected engine vllm, nim, found tgi"),
        ({"engine": "ollama", "old_metric_names": True}, "old_metric_names: expected engine vllm, sglang, llamacpp, found ollama"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_what_was_expected(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SimConfig(**wrong)  # type: ignore[arg-type]

    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(sentence)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SimConfig(slots=0, kv_blocks=1, port=-1)

    assert len(caught.value.problems) == 3
