"""epp.envoy.config: what is in the configuration, and that a real Envoy accepts every combination of choices."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from epp.envoy.config import bootstrap
from epp.envoy.model_servers import LISTS_CLUSTER
from epp.envoy.options import BodyMode, EnvoyOptions, HostPort, UnixSocket
from epp.envoy.process import find_envoy
from epp.envoy.typed import as_dict, as_json, as_yaml
from tests.envoy.certificates import self_signed

NAMES = [HostPort("epp-0.epp", 9002), HostPort("10.0.0.1", 9002)]
SWITCHES: list[dict[str, Any]] = [
    {},
    {"pick_only": True},
    {"original_dst": True},
    {"fail_open": False, "endpoints_named": 1, "retry_unanswered": False},
    {"retry_busy": True, "endpoints_named": 5, "upstream_http2": True},
    {"original_dst": True, "fail_open": True},
    {"original_dst": True, "fail_open": True, "fallback": [HostPort("::1", 8000), HostPort("a.example", 80)]},
    {
        "original_dst": True,
        "fail_open": True,
        "fallback": [HostPort("10.0.0.1", 8000)],
        "pick_only": True,
        "upstream_http2": True,
    },
    {"epp": [UnixSocket("/run/epp.sock")]},
    {"epp_tls": False, "admin": None, "access_log": True},
    {"endpoints_named": 3},
    {"epp_server_name": "epp.example", "epp": NAMES, "listen": HostPort("::", 80)},
    {"epp_ca": "CA", "epp": [HostPort("::1", 9002)], "message_timeout_s": 0.2, "connect_timeout_s": 0.25},
    {"epp_ca": "CA", "epp_server_name": "epp.example", "buffer_limit_bytes": 32768, "upstream_http2": True},
]


async def validate(folder: Path, text: str) -> tuple[int, str]:
    """Exit code and output of `envoy --mode validate`."""
    file = folder / "envoy.yaml"
    file.write_text(text)
    process = await asyncio.create_subprocess_exec(
        *(find_envoy(), "--mode", "validate", "-c", file, "--log-level", "error"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("ca") / "ca.crt"
    file.write_bytes(self_signed("epp.example").certificate)
    return str(file)


@pytest.mark.parametrize("number", range(len(SWITCHES)))
async def test_a_real_envoy_accepts_every_combination_of_switches(number: int, tmp_path: Path, ca_file: str) -> None:
    switches: dict[str, Any] = {name: ca_file if value == "CA" else value for name, value in SWITCHES[number].items()}
    message = bootstrap(EnvoyOptions(**switches))

    for text in (as_yaml(message), as_json(message)):
        code, output = await validate(tmp_path, text)
        assert code == 0, output


@pytest.mark.timeout(600)  # 25 Envoys
async def test_a_real_envoy_accepts_every_pair_of_body_modes(tmp_path: Path) -> None:
    for request_mode, response_mode in itertools.product(BodyMode, BodyMode):
        options = EnvoyOptions(request_body_mode=request_mode, response_body_mode=response_mode)
        code, output = await validate(tmp_path, as_yaml(bootstrap(options)))
        assert code == 0, f"{request_mode}, {response_mode}: {output}"


async def test_a_real_envoy_would_refuse_a_wrong_field(tmp_path: Path) -> None:
    code, output = await validate(tmp_path, as_yaml(bootstrap(EnvoyOptions())).replace("max_retries", "max_retrys"))

    assert code != 0
    assert "max_retrys" in output


def test_no_limit_of_1024_streams_bites() -> None:
    """Field report 32: Envoy's default limits refuse the 1,025th request of a cluster."""
    with_fallback = EnvoyOptions(original_dst=True, fail_open=True, fallback=[HostPort("10.0.0.1", 8000)])
    for name, cluster in {**clusters(EnvoyOptions()), **clusters(with_fallback)}.items():
        if name != LISTS_CLUSTER:  # one stream
            assert min(cluster["circuit_breakers"]["thresholds"][0].values()) >= 40_000


def test_nothing_waits_long_for_a_connection_and_nothing_cuts_a_long_answer() -> None:
    for options, name in ((EnvoyOptions(), "model_servers"), (EnvoyOptions(original_dst=True), "picked_endpoint")):
        assert all(cluster["connect_timeout"] == "5s" for cluster in clusters(options).values())
        assert {key: value for key, value in route(options).items() if key != "retry_policy"} == {
            "cluster": name,
            "timeout": "0s",
            "idle_timeout": "86400s",
        }
        assert "timeout" not in ext_proc(options)["grpc_service"]


def test_a_retry_has_no_time_limit_and_goes_to_an_endpoint_that_was_not_tried() -> None:
    policy = route(EnvoyOptions())["retry_policy"]

    assert not [key for key in policy if key.startswith("per_try")]
    assert [predicate["name"] for predicate in policy["retry_host_predicate"]] == ["envoy.retry_host_predicates.previous_hosts"]


@pytest.mark.parametrize(
    ("choices", "conditions"),
    [
        ({}, "connect-failure,refused-stream,reset-before-request,reset"),
        ({"retry_unanswered": False}, "connect-failure,refused-stream,reset-before-request"),
        ({"retry_busy": True}, "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes"),
    ],
)
def test_what_is_retried_is_what_was_chosen(choices: dict[str, Any], conditions: str) -> None:
    policy = route(EnvoyOptions(**choices))["retry_policy"]

    assert policy["retry_on"] == conditions
    assert policy.get("retriable_status_codes") == ([503] if choices.get("retry_busy") else None)


@pytest.mark.parametrize(("named", "retries"), [(1, 2), (3, 2), (5, 4)])
def test_the_endpoints_named_are_asked_for_and_there_are_tries_for_all_of_them(named: int, retries: int) -> None:
    options = EnvoyOptions(endpoints_named=named)

    assert ext_proc(options)["grpc_service"]["initial_metadata"] == [{"key": "x-epp-endpoints-named", "value": str(named)}]
    assert route(options)["retry_policy"]["num_retries"] == retries


def test_where_one_address_is_taken_one_is_asked_for_and_nothing_is_retried() -> None:
    """ORIGINAL_DST takes one address: a retry would meet the same dead endpoint, and a list would be no address."""
    options = EnvoyOptions(original_dst=True)

    assert "initial_metadata" not in ext_proc(options)["grpc_service"]
    assert "retry_policy" not in route(options)


@pytest.mark.parametrize("choices", [{}, {"original_dst": True}, {"upstream_http2": True}])
def test_connections_are_closed_before_a_model_server_closes_them_after_five_idle_seconds(choices: dict[str, Any]) -> None:
    options = EnvoyOptions(**choices)
    cluster = clusters(options)[route(options)["cluster"]]
    (protocol,) = cluster["typed_extension_protocol_options"].values()

    assert protocol["common_http_protocol_options"] == {"idle_timeout": "4s"}


def test_envoy_goes_on_without_a_picker_where_it_knows_endpoints() -> None:
    """Field report 80: the filter flag alone is not enough; the stream must fail before the first byte of the body."""
    for options, fails_open in (
        (EnvoyOptions(), True),
        (EnvoyOptions(fail_open=False), False),
        (EnvoyOptions(original_dst=True), False),
        (EnvoyOptions(original_dst=True, fail_open=True), True),
    ):
        picker = clusters(options)["endpoint_picker"]
        assert ext_proc(options).get("failure_mode_allow", False) is fails_open
        assert ("healthy_panic_threshold" in picker.get("common_lb_config", {})) is fails_open
        assert picker["health_checks"][0]["interval"] == picker["health_checks"][0]["no_traffic_interval"] == "0.500s"


def test_the_picker_is_resolved_by_dns_only_when_it_has_a_name() -> None:
    assert clusters(EnvoyOptions())["endpoint_picker"]["type"] == "STATIC"
    assert clusters(EnvoyOptions(epp=NAMES))["endpoint_picker"]["type"] == "STRICT_DNS"


def test_pick_only_skips_every_response_phase() -> None:
    """Field report 32: streams that need not last as long as the response."""
    mode = ext_proc(EnvoyOptions(pick_only=True))["processing_mode"]

    assert mode["response_header_mode"] == mode["response_trailer_mode"] == "SKIP"
    assert "response_body_mode" not in mode  # NONE is the default and left out
    assert mode["request_body_mode"] == "FULL_DUPLEX_STREAMED"


def test_the_picker_is_told_who_answered_and_whom_envoy_asked() -> None:
    """Field report 13: so that a refused connection counts against the endpoint at once."""
    assert ext_proc(EnvoyOptions())["response_attributes"] == [
        "response.code_details",
        "upstream.address",
        "upstream.request_attempt_count",
    ]
    assert "response_attributes" not in ext_proc(EnvoyOptions(pick_only=True))


def test_the_picker_is_told_how_many_endpoints_the_cluster_can_try() -> None:
    """Field report 87."""
    several = ext_proc(EnvoyOptions(endpoints_named=3))["grpc_service"]
    assert several["initial_metadata"] == [{"key": "x-epp-endpoints-named", "value": "3"}]
    assert "initial_metadata" not in ext_proc(EnvoyOptions(original_dst=True))["grpc_service"]


def test_trailers_go_along_with_the_body() -> None:
    mode = ext_proc(EnvoyOptions(request_body_mode=BodyMode.NONE))["processing_mode"]

    assert mode["request_trailer_mode"] == "SKIP"
    assert mode["response_trailer_mode"] == "SEND"


def clusters(options: EnvoyOptions) -> dict[str, Any]:
    return {cluster["name"]: cluster for cluster in as_dict(bootstrap(options))["static_resources"]["clusters"]}


def route(options: EnvoyOptions) -> dict[str, Any]:
    (only,) = manager(options)["route_config"]["virtual_hosts"][0]["routes"]
    action: dict[str, Any] = only["route"]
    return action


def manager(options: EnvoyOptions) -> dict[str, Any]:
    listener = as_dict(bootstrap(options))["static_resources"]["listeners"][0]
    config: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return config


def ext_proc(options: EnvoyOptions) -> dict[str, Any]:
    config: dict[str, Any] = manager(options)["http_filters"][0]["typed_config"]
    return config
