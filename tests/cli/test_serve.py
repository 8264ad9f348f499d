"""Flags, environment and files of `epp serve`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from epp.cli import main, serve
from epp.config.loader import Loaded
from epp.config.settings import Settings
from epp.errors import ConfigError

ENDPOINT = ["--endpoint", "10.0.0.1:8000"]


class Started:
    """Takes the place of the program behind the command."""

    loaded: Loaded
    ignored: Sequence[str]

    def __call__(self, loaded: Loaded, document: Any, ignored: Sequence[str]) -> None:
        self.loaded = loaded
        self.ignored = ignored


def start(monkeypatch: pytest.MonkeyPatch, arguments: list[str], env: dict[str, str] | None = None) -> Started:
    started = Started()
    monkeypatch.setattr(serve, "run", started)
    result = CliRunner().invoke(serve.command, arguments, env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return started


def settings(monkeypatch: pytest.MonkeyPatch, arguments: list[str], env: dict[str, str] | None = None) -> Settings:
    return start(monkeypatch, arguments, env).loaded.settings


def test_defaults_are_those_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    got = settings(monkeypatch, ENDPOINT)
    assert (got.server.grpc_port, got.server.grpc_health_port, got.server.metrics_port) == (9002, 9003, 9090)
    assert got.server.secure_serving is True
    assert (got.scrape.interval_s, got.scrape.staleness_s, got.server.drain_timeout_s) == (0.05, 2.0, 30.0)
    assert (got.limits.max_request_body_bytes, got.limits.max_buffered_bytes) == (64 << 20, 512 << 20)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--secure-serving"], True),
        (["--secure-serving=false"], False),
        (["--secure-serving", "false"], False),
        (["--secure-serving", "--grpc-port", "1"], True),
        (["--secure-serving=true"], True),
    ],
)
def test_boolean_flags_work_as_in_gos_flag_package(monkeypatch: pytest.MonkeyPatch, arguments: list[str], value: bool) -> None:
    assert settings(monkeypatch, [*ENDPOINT, *arguments]).server.secure_serving is value


def test_a_flag_beats_the_environment_and_the_environment_beats_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, scrape: {interval: 100ms, timeout: 3s}, drain: {timeout: 9s}}"
    env = {"EPP_REFRESH_METRICS_INTERVAL": "200ms", "EPP_GRPC_PORT": "1", "EPP_SECURE_SERVING": "false"}
    got = settings(monkeypatch, [*ENDPOINT, "--config-text", text, "--grpc-port=2"], env)
    assert got.scrape.interval_s == 0.2
    assert got.scrape.timeout_s == 3.0
    assert got.server.grpc_port == 2
    assert got.server.secure_serving is False
    assert got.server.drain_timeout_s == 9.0


def test_the_source_of_endpoints_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, [], {"EPP_ENDPOINTS_FILE": "/x.yaml"}).source.endpoints_file == "/x.yaml"


def test_flags_of_the_reference_pickers_without_a_meaning_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "--metrics-endpoint-auth",
        "--tracing=false",
        "--zap-encoder",
        "json",
        "-v",
        "4",
        "--enable-pprof",
        "false",
    ]
    started = start(monkeypatch, [*ENDPOINT, *arguments, "--disable-endpoint-subset-filter=false"])
    assert sorted(started.ignored) == ["--enable-pprof", "--metrics-endpoint-auth", "--tracing", "--zap-encoder", "-v"]


def test_a_pool_of_kubernetes_is_named_as_for_the_reference_pickers(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--pool-name", "p", "--pool-namespace=ns", "--pool-group", "inference.networking.x-k8s.io"]
    got = settings(monkeypatch, [*arguments, "--ha-enable-leader-election", "--kubeconfig", "/k", "--endpoint-ip-family=ipv6"])
    assert (got.source.pool_name, got.source.in_kubernetes) == ("p", True)
    kubernetes = got.kubernetes
    assert (kubernetes.pool_namespace, kubernetes.pool_group) == ("ns", "inference.networking.x-k8s.io")
    assert (kubernetes.kubeconfig, kubernetes.ip_family, kubernetes.leader_election) == ("/k", "ipv6", True)


def test_pods_can_be_the_endpoints_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    got = settings(monkeypatch, ["--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001"])
    assert (got.source.endpoint_selector, got.source.endpoint_target_ports) == ("app=vllm", (8000, 8001))


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["--endpoint-target-ports", "8000", "--endpoint-target-ports", "8001,8002"], {}),
        (["--endpoint-target-ports=8000,8001,8002"], {}),
        ([], {"EPP_ENDPOINT_TARGET_PORTS": "8000,8001,8002"}),
    ],
)
def test_target_ports_may_be_given_one_by_one(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], env: dict[str, str]
) -> None:
    got = settings(monkeypatch, ["--endpoint-selector", "app=vllm", *arguments], env)
    assert got.source.endpoint_target_ports == (8000, 8001, 8002)


def test_defaults_of_the_reference_pickers_may_be_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = ["--pool-namespace", "", "--kubeconfig=", "--cert-path", "", "--endpoint-selector=", "--endpoint-target-ports", ""]
    got = settings(monkeypatch, ["--pool-name", "p", *empty])
    assert (got.kubernetes.pool_namespace, got.kubernetes.kubeconfig, got.server.cert_path) == (None, None, None)
    assert (got.source.endpoint_selector, got.source.endpoint_target_ports) == (None, ())
    got = settings(monkeypatch, ["--pool-name", "", "--endpoint-selector", "app=x", "--endpoint-target-ports", "8000"])
    assert got.source.pool_name is None


def test_flags_of_kubernetes_beside_another_source_are_told_to_be_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = start(monkeypatch, [*ENDPOINT, "--pool-namespace", "ns", "--ha-enable-leader-election"]).loaded
    (note,) = loaded.notes
    assert note.startswith("flag --ha-enable-leader-election, flag --pool-namespace: without effect, for neither --pool-name")


def test_deprecated_flags_for_the_metrics_page_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report 44: port, path and scheme for scraping are settings."""
    got = settings(monkeypatch, [*ENDPOINT, "--model-server-metrics-port=9400", "--model-server-metrics-path", "/internal/m"])
    assert (got.scrape.port, got.scrape.path) == (9400, "/internal/m")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--pool-name", "p", "--endpoint-selector", "app=x"], "expected exactly one of --pool-name, --endpoint-selector"),
        (["--endpoint-selector", "app=x"], "--endpoint-selector: expected --endpoint-target-ports with it, found none"),
        (["--endpoint-target-ports", "8000"], "--endpoint-target-ports: expected --endpoint-selector with it, found none"),
        (
            ["--endpoint-selector", "app=x", "--endpoint-target-ports", "8000,8000"],
            "--endpoint-target-ports: expected 1 to 8 different ports from 1 to 65535, such as 8000,8001, found '8000,8000'",
        ),
        (["--pool-name", "p", "--pool-namespace", "../x"], "--pool-namespace: expected lower-case letters, digits and -"),
        (
            ["--pool-name", "p,q"],
            "--pool-name: expected lower-case letters, digits, - and . (at most 253), or nothing, found 'p,q'",
        ),
        (["--pool-name", "p", "--pool-group", "x"], "--pool-group: expected one of inference.networking.k8s.io, "),
        (
            [*ENDPOINT, "--total-queued-requests-metric", "x"],
            "--total-queued-requests-metric: not supported; describe the engine",
        ),
        ([*ENDPOINT, "--disable-endpoint-subset-filter"], "--disable-endpoint-subset-filter: expected false"),
        ([*ENDPOINT, "--grpc-port", "http"], "--grpc-port: expected a port from 0 to 65535, found 'http'"),
        ([*ENDPOINT, "--drain-timeout", "30"], "--drain-timeout: expected a duration such as 50ms, 2s or 1m, found '30'"),
        ([*ENDPOINT, "--secure-serving=maybe"], "--secure-serving: expected true or false, found 'maybe'"),
        ([*ENDPOINT, "--transport", "pigeon"], "--transport: expected one of socket, grpcio, found 'pigeon'"),
        ([*ENDPOINT, "--endpoints-file", "x"], "expected exactly one of"),
        ([], "expected exactly one of"),
        ([*ENDPOINT, "--config-file", "a", "--config-text", "b"], "expected --config-file or --config-text, found both"),
        ([*ENDPOINT, "--config-file", "/nowhere.yaml"], "/nowhere.yaml: expected a readable file, found: No such file"),
    ],
)
def test_wrong_usage_names_the_flag_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str
) -> None:
    """Field report 70: wrong keys and values are refused before serving."""
    with pytest.raises(ConfigError) as caught:
        settings(monkeypatch, arguments)
    assert problem in str(caught.value)


def test_a_wrong_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="EPP_GRPC_PORT: expected a port"):
        settings(monkeypatch, ENDPOINT, {"EPP_GRPC_PORT": "x"})


def test_unknown_flags_end_with_2() -> None:
    result = CliRunner().invoke(serve.command, [*ENDPOINT, "--grpc-prot", "1"])
    assert result.exit_code == 2
    assert "--grpc-prot" in result.output


def test_a_file_that_is_no_utf_8_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=r"c.yaml: expected UTF-8, found byte 0xff at 3"):
        settings(monkeypatch, [*ENDPOINT, "--config-file", str(tmp_path / "c.yaml")])


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_ignored_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"EPP_GRPC_PORT": "tcp://10.0.0.1:9002", "EPP_GRPC_HEALTH_PORT": "tcp://10.0.0.1:9003", "EPP_METRICS_PROT": "1"}
    loaded = start(monkeypatch, ENDPOINT, env).loaded
    assert (loaded.settings.server.grpc_port, loaded.settings.server.grpc_health_port) == (9002, 9003)
    assert [note.split(",")[0] for note in loaded.notes] == [
        "EPP_GRPC_HEALTH_PORT: ignored",
        "EPP_GRPC_PORT: ignored",
        "EPP_METRICS_PROT: unknown variable",
    ]


def test_a_flag_of_the_form_of_such_a_variable_is_still_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--grpc-port: expected a port"):
        settings(monkeypatch, [*ENDPOINT, "--grpc-port", "tcp://10.0.0.1:9002"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_it_serves_ends_it_with_0(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """As the first process of a container it would else not even hear it."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(sys, "argv", ["epp", "serve", *ENDPOINT])
    monkeypatch.setattr("epp.cli.group", lambda **_: signal.raise_signal(number))
    try:
        with pytest.raises(SystemExit) as caught:
            main()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert caught.value.code == 0
