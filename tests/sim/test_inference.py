"""Answers over HTTP."""

import asyncio
import base64
import struct
import time
from typing import Any

import pytest

from epp.sim.config import SimConfig
from tests.fakes.clock import FakeClock
from tests.sim.client_side import CHAT, events, fast, get, is_pending, post, running, until
from tests.sim.views import Samples


async def test_a_chat_is_answered_with_text_and_usage() -> None:
    async with running(fast()) as (server, client):
        status, headers, body = await post(client, "/v1/chat/completions", {**CHAT, "model": "sim-model", "max_tokens": 6})

        assert (status, headers["x-sim-name"]) == (200, server.name)
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["finish_reason"] == "length"
        assert len(body["choices"][0]["message"]["content"]) == 24
        prompt = body["usage"]["prompt_tokens"]
        assert body["usage"] == {
            "prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        }  # fmt: skip
        assert (server.requests_received, server.requests_served) == (1, 1)


@pytest.mark.parametrize(
    ("path", "body", "first", "text"),
    [
        ("/v1/chat/completions", CHAT, {"role": "assistant", "content": ""}, lambda c: c["delta"].get("content", "")),
        ("/v1/completions", {"prompt": "once"}, None, lambda c: c["text"]),
    ],
)
async def test_a_stream_says_the_same_as_the_whole_answer(path: str, body: Any, first: Any, text: Any) -> None:
    body = {**body, "max_tokens": 30, "stream_options": {"include_usage": True}}
    async with running(fast()) as (server, client):
        _, _, whole = await post(client, path, body)
        found = await events(client, path, body)

        assert found[-1] == ("", "[DONE]")
        *chunks, usage = [chunk for _, chunk in found[:-1]]
        assert "".join(text(chunk["choices"][0]) for chunk in chunks) == text(
            {"delta": whole["choices"][0].get("message"), **whole["choices"][0]}
        )
        if first is not None:
            assert chunks[0]["choices"][0]["delta"] == first
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == ["length"]
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 30
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert server.requests_served == 2


async def test_a_stream_has_no_usage_unless_it_is_asked_for() -> None:
    async with running(fast()) as (_, client):
        found = await events(client, "/v1/chat/completions", {**CHAT, "max_tokens": 2})

    assert not any("usage" in chunk for _, chunk in found[:-1])


async def test_a_stream_of_responses_ends_with_usage_under_response() -> None:
    async with running(fast()) as (_, client):
        _, _, whole = await post(client, "/v1/responses", {"input": "once", "max_output_tokens": 5})
        found = await events(client, "/v1/responses", {"input": "once", "max_output_tokens": 5})

    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert all(name == data["type"] for name, data in found)
    assert [name for name, _ in found][:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    text = "".join(data["delta"] for name, data in found if name == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    assert found[-1][0] == "response.incomplete"
    assert found[-1][1]["response"]["usage"]["output_tokens"] == 5
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + 5


async def test_the_messages_api_reports_cached_tokens_apart() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 4}
    async with running(fast()) as (_, client):
        _, _, cold = await post(client, "/v1/messages", body)
        found = await events(client, "/v1/messages", body)

    assert [name for name, _ in found] == [
        "message_start", "content_block_start", *["content_block_delta"] * 4, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert cold["usage"]["cache_read_input_tokens"] == 0
    warm = found[0][1]["message"]["usage"]
    assert warm["cache_read_input_tokens"] == 96
    assert warm["input_tokens"] == cold["usage"]["input_tokens"] - 96
    assert found[-2][1]["usage"]["output_tokens"] == 4
    assert (cold["stop_reason"], found[-2][1]["delta"]["stop_reason"]) == ("max_tokens", "max_tokens")


async def test_embeddings_are_the_same_as_numbers_and_as_base64() -> None:
    async with running(fast()) as (_, client):
        _, _, plain = await post(client, "/v1/embeddings", {"input": ["one", "two"], "dimensions": 4})
        _, _, packed = await post(client, "/v1/embeddings", {"input": "one", "dimensions": 4, "encoding_format": "base64"})

    vector = struct.unpack("<4f", base64.b64decode(packed["data"][0]["embedding"]))
    assert [item["index"] for item in plain["data"]] == [0, 1]
    assert vector == pytest.approx(plain["data"][0]["embedding"], abs=1e-6)
    assert plain["usage"]["completion_tokens"] == 0


async def test_several_prompts_and_choices_are_answered_in_order() -> None:
    async with running(fast()) as (_, client):
        _, _, body = await post(client, "/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 8})
        found = await events(client, "/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 8})

    texts = [choice["text"] for choice in body["choices"]]
    streamed = ["", "", "", ""]
    for _, chunk in found[:-1]:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert streamed == texts
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 32


async def test_the_second_turn_of_a_chat_finds_the_first_in_the_cache() -> None:
    messages = [{"role": "user", "content": "x" * 600}]
    async with running(fast()) as (_, client):
        _, _, first = await post(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 100, "ignore_eos": True})
        messages += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
        _, _, second = await post(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})

    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] < cached <= first["usage"]["total_tokens"]
    assert cached % 16 == 0


async def test_without_prefix_caching_nothing_is_found() -> None:
    body = {"prompt": "x" * 600, "max_tokens": 1}
    async with running(fast(prefix_caching=False)) as (_, client):
        await post(client, "/v1/completions", body)
        _, _, again = await post(client, "/v1/completions", body)

    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_two_servers_of_one_seed_say_the_same_and_of_another_do_not() -> None:
    async def said(seed: int) -> list[str]:
        async with running(fast(seed=seed)) as (_, client):
            bodies = [await post(client, "/v1/completions", {"prompt": f"prompt {number}"}) for number in range(3)]
            return [body["choices"][0]["text"] + body["id"] for _, _, body in bodies]

    assert await said(1) == await said(1)
    assert await said(1) != await said(2)


async def test_time_is_spent_as_the_rates_say() -> None:
    """A tenth of a second for the prompt, which brings the first token, and another for the ten that follow."""
    config = SimConfig(prefill_tokens_per_s=1000, decode_tokens_per_s=100, stream_interval_s=0.01)
    body = {"prompt": "x" * 400, "max_tokens": 11, "ignore_eos": True, "stream": True}
    clock = FakeClock()
    async with running(config, clock=clock) as (_, client), client.post("/v1/completions", json=body) as response:
        reading = asyncio.create_task(response.content.readany())
        clock.advance(0.099)
        assert await is_pending(reading)
        clock.advance(0.002)
        first = await reading
        reading = asyncio.create_task(response.content.readany())
        assert await is_pending(reading)
        clock.advance(0.098)
        text = first + await reading
        rest = asyncio.create_task(response.read())
        assert await is_pending(rest)
        clock.advance(0.002)
        text += await rest

    assert first.count(b'"text":') == 1
    assert text.count(b'"text":') == 11 + 1, "and a last event with the reason of the end"


async def test_fast_tokens_leave_together() -> None:
    config = SimConfig(decode_tokens_per_s=1000, stream_interval_s=0.05)
    async with running(config) as (_, client):
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with client.post("/v1/completions", json=body) as response:
            reads = 0
            async for _ in response.content.iter_any():
                reads += 1

    assert reads <= 20, "of 200 tokens"


async def test_a_client_that_leaves_frees_its_slot() -> None:
    async with running(SimConfig(slots=1, decode_tokens_per_s=1)) as (server, client):
        async with client.post("/v1/completions", json={"prompt": "x", "max_tokens": 50, "stream": True}) as response:
            await response.content.readany()
            assert server.running_requests == 1
            response.close()
        await until(lambda: server.running_requests == 0)

        assert server.open_requests() == 0
        assert server.requests_served == 0


async def test_a_waiting_client_that_leaves_frees_its_place() -> None:
    async with running(SimConfig(slots=1, decode_tokens_per_s=1)) as (server, client):
        body = {"prompt": "x", "max_tokens": 50}
        tasks = [asyncio.create_task(post(client, "/v1/completions", body)) for _ in range(2)]
        await until(lambda: server.waiting_requests == 1)
        tasks[1].cancel()
        await until(lambda: server.waiting_requests == 0)
        assert server.running_requests == 1
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("engine", "status", "error"),
    [
        ("vllm", 503, lambda b: b["error"]["code"] == 503),
        ("nim", 503, lambda b: b["error"]["code"] == 503),
        ("sglang", 503, lambda b: b["message"] == "The request queue is full."),
        ("trtllm-serve", 503, lambda b: b["error"]["code"] == 503),
        ("triton-tensorrt-llm", 503, lambda b: b["error"] == "Exceeds maximum queue size"),
        ("llamacpp", 503, lambda b: b["error"]["code"] == 503),
        ("tgi", 429, lambda b: b["error_type"] == "overloaded"),
        ("ollama", 503, lambda b: b["error"]["message"].startswith("server busy, please try again.")),
        ("lmdeploy", 503, lambda b: b["error"]["code"] == 503),
    ],
)
async def test_a_full_queue_is_refused_in_the_engines_manner(engine: str, status: int, error: Any) -> None:
    async with running(SimConfig(engine=engine, slots=1, max_queue_requests=0, decode_tokens_per_s=1)) as (server, client):
        body = {"model": "sim-model", "prompt": "x", "max_tokens": 50}
        first = asyncio.create_task(post(client, "/v1/completions", body))
        await until(lambda: server.running_requests == 1)

        found, _, answer = await post(client, "/v1/completions", body)

        assert found == status
        assert error(answer)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize(
    ("engine", "status"), [("vllm", 404), ("ollama", 404), ("lmdeploy", 404), ("sglang", 200), ("llamacpp", 200)]
)
async def test_an_unknown_model_is_refused_by_engines_that_look(engine: str, status: int) -> None:
    async with running(fast(engine=engine)) as (_, client):
        found, _, _ = await post(client, "/v1/completions", {"model": "other", "prompt": "x", "max_tokens": 1})

    assert found == status


async def test_a_broken_body_is_400_or_tgis_422() -> None:
    for engine, status in (("vllm", 400), ("tgi", 422)):
        async with running(fast(engine=engine)) as (server, client):
            async with client.post("/v1/completions", data=b"{") as response:
                assert response.status == status
            found, _, body = await post(client, "/v1/chat/completions", {"messages": 5})
            assert found == status
            assert "messages: expected a list" in str(body)
            assert (server.requests_received, server.requests_served) == (2, 0)


async def test_a_prompt_that_never_fits_is_a_bad_request_and_an_answer_stops_where_the_cache_ends() -> None:
    async with running(fast(engine="sglang", kv_blocks=4, kv_block_tokens=16)) as (_, client):
        status, _, body = await post(client, "/v1/completions", {"prompt": "x" * 256})
        assert status == 400
        assert "maximum context length is 64 tokens" in body["message"]
        _, _, cut = await post(client, "/v1/completions", {"prompt": "x" * 240, "max_tokens": 50})

    assert cut["usage"]["completion_tokens"] == 4
    assert cut["choices"][0]["finish_reason"] == "length"


async def test_an_adapter_is_a_model_and_shows_in_the_metrics_while_it_runs() -> None:
    config = SimConfig(lora_adapters=("sql",), decode_tokens_per_s=1)
    async with running(config) as (server, client):
        task = asyncio.create_task(post(client, "/v1/completions", {"model": "sql", "prompt": "x", "max_tokens": 9}))
        await until(lambda: server.running_requests == 1)
        _, page = await get(client, "/metrics")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    (labels,) = Samples(page.decode()).labels("vllm:lora_requests_info")
    assert labels["running_lora_adapters"] == "sql"


@pytest.mark.parametrize(
    ("engine", "metric"), [("vllm", "num_requests_waiting"), ("triton-tensorrt-llm", "kv_cache_utilization")]
)
async def test_load_is_reported_in_a_header_when_the_request_asks(engine: str, metric: str) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    async with running(fast(engine=engine)) as (_, client):
        _, silent, _ = await post(client, "/v1/completions", body)
        _, text, _ = await post(client, "/v1/completions", body, **{"endpoint-load-metrics-format": "text"})
        _, packed, _ = await post(client, "/v1/completions", body, **{"endpoint-load-metrics-format": "JSON"})

    assert "endpoint-load-metrics" not in silent
    assert f"named_metrics.{metric}=0.0" in text["endpoint-load-metrics"]
    assert text["endpoint-load-metrics"].startswith("TEXT ")
    assert packed["endpoint-load-metrics"].startswith('JSON {"named_metrics":{')


async def test_tgi_tells_queue_time_in_headers() -> None:
    async with running(fast(engine="tgi")) as (_, client):
        _, headers, _ = await post(client, "/v1/completions", {"prompt": "xxxx", "max_tokens": 3})

    assert (headers["x-queue-time"], headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("0", "1", "3")


async def test_a_stream_of_sglang_has_no_headers_before_its_first_token_and_one_of_vllm_has() -> None:
    for engine, early in (("sglang", False), ("vllm", True)):
        config, clock = SimConfig(engine=engine, prefill_tokens_per_s=100), FakeClock()
        async with running(config, clock=clock) as (server, client):
            body = {"prompt": "x" * 200, "max_tokens": 2, "stream": True}
            headers = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await until(lambda server=server: server.running_requests == 1)  # type: ignore[misc]
            if early:
                await headers  # though the clock stands still
            else:
                assert await is_pending(headers)
            clock.advance(10)
            async with await headers as response:
                await response.read()


async def test_hundreds_of_short_answers_a_second() -> None:
    config = fast(slots=64, decode_tokens_per_s=10_000)
    async with running(config) as (server, client):
        gate = asyncio.Semaphore(32)

        async def one(number: int) -> int:
            async with gate:
                status, _, _ = await post(client, "/v1/completions", {"prompt": f"p{number}", "max_tokens": 4})
                return status

        async def page(_: int) -> int:
            async with gate:
                return (await get(client, "/health"))[0]

        statuses: list[int] = []
        spent_s = page_spent_s = 0.0
        for part in range(0, 600, 100):  # by turns, so that both meet the same machine
            begin_s = time.process_time()
            statuses += await asyncio.gather(*(one(number) for number in range(part, part + 100)))
            middle_s = time.process_time()
            await asyncio.gather(*map(page, range(100)))
            spent_s += middle_s - begin_s
            page_spent_s += time.process_time() - middle_s

        assert statuses == [200] * 600
        assert server.requests_served == 600
    # Client and server together. A page costs what HTTP costs; an answer was measured to take 2.2 times that, at 1,800 a second.
    assert spent_s < 8 * page_spent_s
