"""`epp envoy-config`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from epp.cli.envoy_config import command

ROOT = Path(__file__).parents[2]
WITHOUT_TYPES = """
import sys
sys.modules["envoy_data_plane"] = None
from epp.cli.envoy_config import command
command(["--epp", "10.0.0.1:9002"], prog_name="epp envoy-config")
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_the_whole_configuration_is_printed_by_default() -> None:
    result = run()
    content = yaml.safe_load(result.stdout)

    assert result.exit_code == 0
    assert content["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] == 8081
    assert content["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert clusters_of(content) == ["endpoint_picker", "endpoint_lists", "model_servers"]


def clusters_of(content: dict[str, Any]) -> list[str]:
    return [cluster["name"] for cluster in content["static_resources"]["clusters"]]


def test_the_plain_variant_knows_no_endpoints_and_refuses_without_a_picker() -> None:
    content = yaml.safe_load(run("--original-dst").stdout)

    assert clusters_of(content) == ["endpoint_picker", "picked_endpoint"]
    assert "failure_mode_allow" not in run("--original-dst").stdout


def test_servers_for_requests_without_a_pick_bring_the_plain_variant_with_them() -> None:
    content = yaml.safe_load(run("--fail-open", "--fallback", "10.0.0.1:80").stdout)

    assert clusters_of(content) == ["endpoint_picker", "picked_endpoint", "fallback"]


def test_the_filter_alone_asks_for_one_endpoint_and_fails_closed_unless_told_otherwise() -> None:
    """The cluster behind it is not known here."""
    alone = yaml.safe_load(run("--filter-only").stdout)["typed_config"]
    told = yaml.safe_load(run("--filter-only", "--endpoints-named", "2", "--fail-open").stdout)["typed_config"]

    assert "initial_metadata" not in alone["grpc_service"]
    assert "failure_mode_allow" not in alone
    assert told["grpc_service"]["initial_metadata"] == [{"key": "x-epp-endpoints-named", "value": "2"}]
    assert told["failure_mode_allow"] is True


def test_json_is_the_same_configuration() -> None:
    assert json.loads(run("--format", "json").stdout) == yaml.safe_load(run().stdout)


def test_the_filter_alone_is_one_entry() -> None:
    content = yaml.safe_load(run("--filter-only", "--pick-only").stdout)

    assert content["name"] == "envoy.filters.http.ext_proc"
    assert content["typed_config"]["processing_mode"]["response_header_mode"] == "SKIP"


@pytest.mark.parametrize("arguments", [["--epp-tls=false"], ["--epp-tls", "false"], ["--epp-tls=0"]])
def test_a_switch_can_be_written_in_every_way(arguments: list[str]) -> None:
    assert "transport_socket" in run("--epp-tls").stdout
    assert "transport_socket" not in run(*arguments, "--access-log").stdout
    assert "StdoutAccessLog" in run(*arguments, "--access-log").stdout


def test_every_choice_reaches_the_configuration() -> None:
    text = run(
        *("--epp", "a.example:1", "--epp", "10.0.0.2:2", "--listen", "[::1]:3", "--admin", "127.0.0.9:4"),
        *("--epp-ca", "/etc/ca.crt", "--epp-server-name", "epp.example", "--message-timeout", "7s"),
        *("--connect-timeout", "250ms", "--buffer-limit", "3MiB", "--request-body-mode", "buffered_partial"),
        *("--response-body-mode", "STREAMED", "--fail-open", "--fallback", "10.0.0.3:5", "--upstream-http2", "--access-log"),
    ).stdout
    for part in ("a.example", "10.0.0.2", "address: ::1", "127.0.0.9", "/etc/ca.crt", "sni: epp.example", "message_timeout: 7s",
                 "connect_timeout: 0.250s", "per_connection_buffer_limit_bytes: 3145728", "request_body_mode: BUFFERED_PARTIAL",
                 "response_body_mode: STREAMED", "failure_mode_allow: true", "10.0.0.3", "StdoutAccessLog"):  # fmt: skip
        assert part in text, part
    assert text.count("http2_protocol_options") == 4  # clients, picker, picked endpoint, fallback


def test_the_admin_pages_can_be_left_out() -> None:
    assert "admin" not in yaml.safe_load(run("--admin", "none").stdout)


def test_the_command_in_the_comment_stays_one_line() -> None:
    text = run("--epp-ca", "/a b\nadmin: {}").stdout

    assert "# Made by: epp envoy-config --epp-ca='/a b admin: {}'\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epp", "nowhere"], "'--epp': expected host:port, IPv6 in brackets, port from 0 to 65535, or unix:/path, found 'nowhere'"),
        (["--listen", "a.example:80"], "--listen: expected an IP address and port, found 'a.example:80'"),
        (["--admin", "x"], "'--admin': expected none, or host:port"),
        (["--request-body-mode", "GRPC"], "BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, found 'GRPC'"),
        (["--pick-only", "--response-body-mode", "STREAMED"], "--response-body-mode: expected NONE with --pick-only"),
        (["--fallback", "10.0.0.1:80"], "--fallback: expected --fail-open beside it"),
        (["--original-dst=false", "--fallback", "10.0.0.1:80"], "--fallback: expected --original-dst beside it"),
        (["--original-dst", "--retry-busy"], "--retry-busy: expected a list of endpoints, found --original-dst"),
        (["--endpoints-named", "6"], "6 is not in the range 1<=x<=5"),
        (["--message-timeout", "soon"], "expected a duration such as 50ms, 2s or 1m, found 'soon'"),
        (["--buffer-limit", "1KiB"], "--buffer-limit: expected 16KiB to 2047MiB, found 1024 bytes"),
        (["--epp-tls", "maybe"], "expected true or false, found 'maybe'"),
        (["--filter-only", "--listen", "10.0.0.1:80"], "--listen: expected a whole configuration, found --filter-only"),
        (["--colour", "red"], "No such option"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_what_was_expected(arguments: list[str], message: str) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_TYPES], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stdout == ""
    assert "pip install 'inference-epp[envoy-config]'" in result.stderr
    assert "Traceback" not in result.stderr
