"""JSON under `/api/v1`."""

from typing import Any

import pytest

from epp.admin.settings_view import EffectiveSetting
from epp.lifecycle import Phase
from epp.pool.endpoint import EndpointSpec, endpoint_address
from epp.pool.metrics import LoraState
from tests.admin.running import Admin, serving
from tests.fakes.pool import spec, tell


async def get(admin: Admin, path: str, status: int = 200) -> Any:
    async with admin.client.get(path) as answer:
        assert answer.status == status
        assert answer.content_type == "application/json"
        return await answer.json()


async def test_the_pool_has_the_shape_of_the_contract() -> None:
    async with serving() as admin:
        admin.pool.sync([spec(1, name="gpu-a", engine="vllm")])
        (endpoint,) = admin.pool.endpoints
        admin.pool.count_pick(endpoint)
        admin.pool.count_pick(endpoint)
        tell(
            endpoint,
            admin.clock,
            waiting_requests=0.0,
            running_requests=3.0,
            kv_cache_usage_ratio=0.25,
            kv_cache_blocks=27216,
            kv_cache_block_tokens=16,
            lora=LoraState(active=frozenset({"b", "a"}), max_adapters=4),
        )
        endpoint.scrape_interval_s = 0.05
        admin.clock.advance(0.04)

        answer = await get(admin, "/api/v1/pool")

    assert answer["pool"] == {"name": "p", "source": "static"}
    assert answer["ready"] is True
    (shown,) = answer["endpoints"]
    contract = {
        "endpoint": "10.0.0.1:8000", "name": "gpu-a", "engine": "vllm", "state": "ready", "reason": None, "weight": 1.0,
        "waiting_requests": 0, "running_requests": 3, "kv_cache_usage_ratio": 0.25, "kv_cache_blocks": 27216,
        "kv_cache_block_tokens": 16, "lora": {"active": ["a", "b"], "waiting": [], "max": 4}, "in_flight_requests": 2,
        "metrics_age_s": 0.04, "scrape_interval_s": 0.05, "scrape_error": None,
    }  # fmt: skip
    assert {key: shown[key] for key in contract} == contract
    assert shown["load"]["running_requests"] == 3
    assert shown["load"]["cost_requests"] == 3.25


async def test_a_number_that_the_page_does_not_give_is_null_and_never_zero() -> None:
    async with serving() as admin:
        admin.pool.sync([spec(1), spec(2)])
        tell(admin.pool.endpoints[1], admin.clock, running_requests=0.0)

        never, partly = (await get(admin, "/api/v1/pool"))["endpoints"]

    numbers = [
        "waiting_requests",
        "kv_cache_usage_ratio",
        "kv_cache_blocks",
        "kv_cache_block_tokens",
        "lora",
        "scrape_interval_s",
    ]
    for key in numbers:
        assert never[key] is None
        assert partly[key] is None
    assert (never["running_requests"], partly["running_requests"]) == (None, 0)
    assert (never["metrics_age_s"], partly["metrics_age_s"]) == (None, 0)
    assert (never["in_flight_requests"], never["engine"]) == (0, None)


async def test_states_come_with_their_reason() -> None:
    async with serving() as admin:
        admin.pool.sync([spec(1, draining=True), spec(2, not_ready_reason="pod condition Ready is False"), spec(3)])
        admin.pool.endpoints[2].health.demote("3 answers in a row failed", 0.0, 0)
        admin.pool.endpoints[2].scrape_failed("no answer within 1 s")

        draining, unready, ready = (await get(admin, "/api/v1/pool"))["endpoints"]

    assert (draining["state"], draining["reason"]) == ("draining", "marked as draining")
    assert (unready["state"], unready["reason"]) == ("unready", "pod condition Ready is False")
    assert (ready["state"], ready["demoted_because"]) == ("ready", "3 answers in a row failed")
    assert ready["scrape_error"] == "no answer within 1 s"


async def test_an_endpoint_that_left_is_shown_as_draining_until_its_requests_end() -> None:
    async with serving() as admin:
        admin.pool.sync([spec(1)])
        (endpoint,) = admin.pool.endpoints
        admin.pool.count_pick(endpoint)
        admin.pool.sync([])

        (shown,) = (await get(admin, "/api/v1/pool"))["endpoints"]
        assert (shown["state"], shown["leaving"], shown["in_flight_requests"]) == ("draining", True, 1)

        admin.pool.count_release(endpoint)
        assert (await get(admin, "/api/v1/pool"))["endpoints"] == []


async def test_the_pool_tells_that_the_picker_is_not_ready() -> None:
    async with Admin().serving() as admin:
        starting = await get(admin, "/api/v1/pool")
        admin.lifecycle.enter(Phase.SERVING)
        serving_now = await get(admin, "/api/v1/pool")
        admin.lifecycle.enter(Phase.DRAINING)
        draining = await get(admin, "/api/v1/pool")

    assert [a["ready"] for a in (starting, serving_now, draining)] == [False, True, False]
    assert draining["phase"] == "draining"


async def test_labels_and_ipv6_addresses_are_told_as_they_are() -> None:
    async with serving() as admin:
        admin.pool.sync([EndpointSpec(address=endpoint_address("fd00::7", 8000), name="six", labels={"role": "decode"})])

        (shown,) = (await get(admin, "/api/v1/pool"))["endpoints"]

    assert (shown["endpoint"], shown["labels"]) == ("[fd00::7]:8000", {"role": "decode"})


async def test_numbers_that_json_cannot_say_are_null() -> None:
    async with serving() as admin:
        admin.pool.sync([spec(1)])
        tell(admin.pool.endpoints[0], admin.clock, waiting_requests=float("inf"), kv_cache_usage_ratio=float("nan"))

        (shown,) = (await get(admin, "/api/v1/pool"))["endpoints"]

    assert shown["waiting_requests"] is None
    assert shown["kv_cache_usage_ratio"] is None


async def test_picks_are_given_up_to_the_limit() -> None:
    async with serving() as admin:
        admin.picks = [{"request_id": str(i), "error": None} for i in range(80)]

        assert len((await get(admin, "/api/v1/picks"))["picks"]) == 50
        assert (await get(admin, "/api/v1/picks?limit=2"))["picks"] == admin.picks[:2]
        assert len((await get(admin, "/api/v1/picks?limit=1000"))["picks"]) == 80


@pytest.mark.parametrize("limit", ["0", "-1", "abc", "", "1001", "1e2", "٣", "9" * 5000, "1_0"])
async def test_a_bad_limit_is_refused_naming_the_parameter(limit: str) -> None:
    async with serving() as admin, admin.client.get("/api/v1/picks", params={"limit": limit}) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]

    assert error["parameter"] == "limit"
    assert error["message"].startswith("limit: expected a whole number from 1 to 1000, found ")
    assert len(error["message"]) < 200


async def test_a_model_name_with_a_lone_surrogate_does_not_break_the_answer() -> None:
    async with serving() as admin:
        admin.picks = [{"request_id": "r", "model": "a\ud800b"}]

        assert (await get(admin, "/api/v1/picks"))["picks"][0]["model"] == "a\ud800b"


async def test_the_configuration_names_the_source_of_each_setting() -> None:
    settings = [
        EffectiveSetting(key="scrape.interval", value=0.05, source="default"),
        EffectiveSetting(key="--metrics-port", value=9090, source="flag"),
    ]
    async with serving(settings=settings) as admin:
        answer = await get(admin, "/api/v1/config")

    assert answer == {
        "settings": {
            "--metrics-port": {"value": 9090, "source": "flag"},
            "scrape.interval": {"value": 0.05, "source": "default"},
        }
    }


async def test_the_configuration_hides_credentials() -> None:
    settings = [EffectiveSetting(key="scrape.headers", value=(("authorization", "Bearer s3cret"),), source="file")]
    async with serving(settings=settings) as admin:
        answer = await get(admin, "/api/v1/config")

    assert answer["settings"]["scrape.headers"]["value"] == {"authorization": "(hidden)"}
