"""`epp drain --advise`, as far as it is this part's."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from epp.cli.drain_advice import advice_options, print_advice
from epp.drain.shutdown import ENGINES


@click.command()
@click.option("--engine")
@advice_options
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    """The advice alone."""
    context.exit(print_advice(**flags))


def advice(*flags: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, flags)
    return result.exit_code, result.output


@pytest.mark.parametrize("engine", ENGINES)
def test_the_text_has_every_setting_with_its_reason(engine: str) -> None:
    code, text = advice("--engine", engine, "--slowest-request", "120s")
    _, document = advice("--engine", engine, "--slowest-request", "120s", "--format", "json")

    assert code == 0
    assert text.startswith(f"{ENGINES[engine].title}, requests of up to 120s:\n")
    for setting in json.loads(document)["settings"]:
        assert f"\n{setting['name']}: {setting['value']}\n    {setting['why']}.\n" in text
    for note in json.loads(document)["notes"]:
        assert f"\nNote: {note}.\n" in text


def test_programs_get_numbers() -> None:
    code, text = advice("--engine", "vllm", "--slowest-request", "2m", "--format", "json")
    document = json.loads(text)

    assert code == 0
    assert {key: value for key, value in document.items() if key not in ("settings", "notes")} == {
        "engine": "vllm",
        "slowest_request_s": 120.0,
        "min_wait_s": 5.0,
        "max_wait_s": 138,
        "termination_grace_period_s": 168,
        "engine_deadline_s": 122,
    }


def test_an_engine_may_be_named_as_elsewhere() -> None:
    assert json.loads(advice("--engine", "Triton", "--slowest-request", "1m", "--format", "json")[1])["engine"] == (
        "triton-tensorrt-llm"
    )


def test_what_loses_requests_is_refused_with_a_sentence_for_each_loss() -> None:
    code, text = advice("--engine", "vllm", "--slowest-request", "120s", "--pre-stop", "10s", "--grace", "30s")

    assert code == 2
    assert [line.split(": ")[:2] for line in text.splitlines()] == [
        ["epp drain --advise", "--shutdown-timeout"],
        ["epp drain --advise", "--grace"],
    ]


def test_no_hook_is_written_none() -> None:
    code, text = advice("--engine", "llamacpp", "--slowest-request", "120s", "--pre-stop", "none")

    assert code == 2
    assert "found no hook" in text


def test_what_fits_together_is_not_refused() -> None:
    flags = ("--pre-stop", "10s", "--grace", "200s", "--shutdown-timeout", "130s")

    assert advice("--engine", "vllm", "--slowest-request", "120s", *flags)[0] == 0
    assert advice("--engine", "vllm", "--slowest-request", "120s", "--pre-stop", "hook", "--grace", "168s")[0] == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--slowest-request", "1s"), "--engine: expected one of vllm, sglang, "),
        (("--engine", "vllm"), "--slowest-request: expected a duration above 0 such as 120s, found nothing"),
        (("--engine", "vllm", "--slowest-request", "0s"), "such as 120s, found 0s"),
        (("--engine", "vlm", "--slowest-request", "1s"), "--engine: expected one of vllm, sglang, "),
        (
            ("--engine", "vllm", "--slowest-request", "1s", "--pre-stop", "soon"),
            "--pre-stop: expected hook (epp drain), none, or",
        ),
        (
            ("--engine", "sglang", "--slowest-request", "1s", "--shutdown-timeout", "30s"),
            "--shutdown-timeout: expected nothing, since SGLang has no such flag, found 30s",
        ),
    ],
)
def test_a_wrong_flag_is_refused(flags: tuple[str, ...], sentence: str) -> None:
    code, text = advice(*flags)

    assert code == 2
    assert sentence in text


def test_a_longest_wait_belongs_to_the_hook_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_advice(engine="vllm", slowest_request_s=120.0, max_wait_s=150.0, pre_stop="10s", shutdown_timeout_s=120.0) == 2
    assert "--max-wait: expected only where the preStop hook is this one" in capsys.readouterr().err


def test_the_flags_of_the_hook_are_heard() -> None:
    assert print_advice(engine="vllm", slowest_request_s=120.0, max_wait_s=120.0) == 2
    assert print_advice(engine="vllm", slowest_request_s=120.0, max_wait_s=200.0) == 0
    assert print_advice(engine="vllm", slowest_request_s=120.0, interval_s=0.0) == 2
