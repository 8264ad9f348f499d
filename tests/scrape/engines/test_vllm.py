"""vLLM: names over versions, several engines, the forms of its page, adapters."""

import pytest

from epp.pool.metrics import LoraState
from epp.scrape.engines.page import Fault
from epp.scrape.engines.vllm import VLLM
from tests.scrape.engines.reading import faults, read
from tests.scrape.pages import renamed, sample_page

SQL_AND_TWEET = frozenset({"sql-lora", "tweet-lora"})


def lora(page: str) -> LoraState | None:
    return read(VLLM, page).lora


def lora_line(running: str, at_s: str, *, waiting: str = "", more: str = "") -> str:
    labels = f'{more}max_lora="4",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at_s}\n"


def test_old_and_new_names_of_the_cache_use_are_both_read() -> None:
    """Field report 38."""
    new = sample_page("vllm-busy.txt")
    old = renamed(new, b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
    neither = renamed(new, b"vllm:kv_cache_usage_perc", b"vllm:something_else")

    assert read(VLLM, new).kv_cache_usage_ratio == read(VLLM, old).kv_cache_usage_ratio == 0.41833905139096766
    assert read(VLLM, neither).kv_cache_usage_ratio is None
    assert VLLM.missing(read(VLLM, neither)) == ("KV-cache usage",)
    assert VLLM.missing(read(VLLM, old)) == ()


def test_a_version_with_both_names_is_read_by_the_new_one() -> None:
    assert read(VLLM, "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n").kv_cache_usage_ratio == 0.2


def test_several_engines_behind_one_port_are_summed() -> None:
    """Field report 37."""
    page = (
        'vllm:num_requests_running{engine="0",model_name="m"} 8.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 9.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
        'vllm:num_requests_waiting{engine="1",model_name="m"} 25.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.9\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="120"} 1.0\n'
    )

    metrics = read(VLLM, page)

    assert (metrics.running_requests, metrics.waiting_requests, metrics.kv_cache_usage_ratio) == (17, 25, 0.9)
    assert (metrics.kv_cache_blocks, metrics.kv_cache_block_tokens) == (220, 16)


def test_requests_by_reason_are_not_counted_again() -> None:
    page = sample_page("vllm-saturated.txt")
    assert b'vllm:num_requests_waiting_by_reason{engine="0"' in page

    assert read(VLLM, page).waiting_requests == 187


def test_the_page_of_the_rust_frontend_is_read() -> None:
    page = (
        "# HELP vllm:num_requests_running Number of requests in model execution batches..\n"
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{model_name="m",engine="0"} 3\n'
        'vllm:num_requests_waiting{model_name="m",engine="0"} 1\n'
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25\n'
        "# HELP vllm:prompt_tokens Number of prefill tokens processed..\n"
        "# TYPE vllm:prompt_tokens counter\n"
        'vllm:prompt_tokens_total{model_name="m",engine="0"} 17\n'
        "# EOF\n"
    )

    metrics = read(VLLM, page)

    assert (metrics.running_requests, metrics.waiting_requests, metrics.kv_cache_usage_ratio) == (3, 1, 0.25)
    assert metrics.kv_cache_blocks is None
    assert faults(VLLM, page) == []


def test_the_cache_size_is_unknown_until_the_engine_has_measured_it() -> None:
    page = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1.0\n'

    metrics = read(VLLM, page)

    assert metrics.kv_cache_blocks is None
    assert metrics.kv_cache_block_tokens == 16
    assert faults(VLLM, page) == []


def test_a_label_that_looks_like_code_does_not_end_the_line() -> None:
    page = 'vllm:cache_config_info{a="{\'x\': \\"}\\", \'y\': [1, 2]}",block_size="32",engine="0",num_gpu_blocks="50"} 1.0\n'

    assert (read(VLLM, page).kv_cache_blocks, read(VLLM, page).kv_cache_block_tokens) == (50, 32)


def test_a_use_below_zero_is_unknown() -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} -0.3875\nvllm:num_requests_running{engine="0"} 2\n'

    assert read(VLLM, page).kv_cache_usage_ratio is None
    assert read(VLLM, page).running_requests == 2
    assert faults(VLLM, page) == [Fault.NEGATIVE]


# ── adapters ──


def test_the_newest_series_names_the_adapters() -> None:
    page = (
        lora_line("", "1.78746001225e+09")
        + lora_line("sql-lora,tweet-lora", "1.78746359975e+09", waiting="chat-lora")
        + lora_line("sql-lora", "1.7874609005e+09")
    )

    assert lora(page) == LoraState(active=SQL_AND_TWEET, waiting=frozenset({"chat-lora"}), max_adapters=4)


def test_adapters_without_requests_leave_an_empty_state_and_not_an_unknown_one() -> None:
    page = lora_line("sql-lora", "1.7874609005e+09") + lora_line("", "1.78746359975e+09")

    assert lora(page) == LoraState(max_adapters=4)


def test_without_adapters_the_state_is_unknown() -> None:
    assert lora("vllm:num_requests_running 1\n") is None
    assert read(VLLM, sample_page("vllm-0.7-v0engine-busy.txt")).lora is None  # HELP and TYPE without a sample


def test_names_with_odd_characters_are_whole() -> None:
    assert lora(lora_line('a\\"b}, c{d ', "1.7e9")) == LoraState(active=frozenset({'a"b}', "c{d"}), max_adapters=4)


@pytest.mark.parametrize("text", ["", "many", "-1", "99999999999999999999"])
def test_a_strange_number_of_adapters_is_unknown(text: str) -> None:
    state = lora(f'vllm:lora_requests_info{{max_lora="{text}",running_lora_adapters="a"}} 1.7e9\n')

    assert state == LoraState(active=frozenset({"a"}), max_adapters=None)


def test_with_several_processes_nobody_can_tell_which_series_is_new() -> None:
    """The values are sums of Unix times then."""
    sums = lora_line("old", "3.57492e+09") + lora_line("new", "1.78746359975e+09")
    with_pids = 'vllm:kv_cache_usage_perc{engine="0",pid="273"} 0.4\n' + lora_line("a", "1.78746359975e+09")

    assert lora(sums) is None
    assert lora(with_pids) is None
    assert b"lora_requests_info{" in sample_page("vllm-0.11-multiapi-busy.txt")
    assert read(VLLM, sample_page("vllm-0.11-multiapi-busy.txt")).lora is None


def test_a_time_that_is_no_number_is_not_the_newest() -> None:
    assert lora(lora_line("a", "NaN") + lora_line("b", "+Inf") + lora_line("c", "1.7e9")) == LoraState(
        active=frozenset({"c"}), max_adapters=4
    )
