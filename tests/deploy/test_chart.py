"""The Helm chart: what its values make, and that what it starts can be started."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from epp.cli import serve
from epp.config.document_reader import read_document
from epp.config.loader import Loaded, load_settings
from epp.config.settings import ServerSettings, Settings
from epp.lifecycle import QUIET_S
from tests.deploy.choices import CHOICES, MONITORS
from tests.deploy.rendering import (
    CHART,
    LABELS,
    arguments_of,
    is_of_replicas,
    merged,
    of_kind,
    picker_of,
    pod_of,
    refusal,
    render,
)
from tests.kubernetes.manifest import Manifest
from tests.kubernetes.programs import require_helm

pytestmark = pytest.mark.flow

SERVER = ServerSettings()


@pytest.fixture(scope="module")
def rendered() -> Callable[[str], list[Manifest]]:
    """The objects of each of the combinations, rendered once."""
    known: dict[str, list[Manifest]] = {}

    def get(name: str) -> list[Manifest]:
        if name not in known:
            known[name] = render(CHOICES[name])
        return known[name]

    return get


def started_with(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What `epp` makes of these arguments; nothing is started."""
    loaded: list[Loaded] = []
    monkeypatch.setattr(serve, "run", lambda settings, *_: loaded.append(settings))
    assert arguments[0] == "serve"
    result = CliRunner().invoke(serve.command, arguments[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return loaded[0].settings


def test_helm_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(LABELS))
    lint = subprocess.run(
        [require_helm(), "lint", "--strict", CHART, "--values", values],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert lint.returncode == 0, lint.stdout + lint.stderr
    assert "[WARNING]" not in lint.stdout


@pytest.mark.parametrize("name", CHOICES)
def test_the_picker_accepts_what_it_is_started_with(
    name: str, rendered: Callable[[str], list[Manifest]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(name)
    for config in (each for each in objects if each["kind"] == "ConfigMap"):
        for file, text in config["data"].items():
            (tmp_path / file).write_text(text)
    arguments = [each.replace("/etc/epp/config", str(tmp_path)) for each in arguments_of(objects)]

    settings = started_with(arguments, monkeypatch)

    assert settings.source.in_kubernetes
    ports = {port["name"]: port["containerPort"] for port in picker_of(objects)["ports"]}
    assert ports["grpc"] == settings.server.grpc_port
    assert ports["grpc-health"] == settings.server.grpc_health_port
    assert ports["metrics"] == settings.server.metrics_port


@pytest.mark.parametrize("name", CHOICES)
def test_the_grace_period_holds_the_hook_the_drain_and_the_stop(
    name: str, rendered: Callable[[str], list[Manifest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = rendered(name)
    arguments = [each for each in arguments_of(objects) if not each.startswith("--config-file")]
    hook = picker_of(objects).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    drain_s = started_with(arguments, monkeypatch).server.drain_timeout_s

    assert drain_s > QUIET_S
    assert pod_of(objects)["terminationGracePeriodSeconds"] >= hook + drain_s + 5


@pytest.mark.parametrize("name", CHOICES)
def test_probes_hooks_and_services_name_ports_that_are_there(name: str, rendered: Callable[[str], list[Manifest]]) -> None:
    objects = rendered(name)
    pod = pod_of(objects)
    everywhere = {port["name"] for each in [*pod["containers"], *pod.get("initContainers", [])] for port in each["ports"]}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            for how in ("httpGet", "tcpSocket"):
                if how in container.get(probe, {}):
                    assert container[probe][how]["port"] in own
    for port in of_kind(objects, "Service")["spec"]["ports"]:
        assert port.get("targetPort", port["name"]) in everywhere
    for policy in (each for each in objects if each["kind"] == "NetworkPolicy"):
        named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert named <= everywhere


@pytest.mark.parametrize("name", CHOICES)
def test_no_container_may_more_than_it_must(name: str, rendered: Callable[[str], list[Manifest]]) -> None:
    pod = pod_of(rendered(name))

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", CHOICES)
def test_selectors_of_service_budget_and_policy_match_the_pods(name: str, rendered: Callable[[str], list[Manifest]]) -> None:
    objects = rendered(name)
    labels = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        of_kind(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        of_kind(objects, "Service")["spec"]["selector"],
    ]
    for each in objects:
        if each["kind"] == "PodDisruptionBudget":
            selectors.append(each["spec"]["selector"]["matchLabels"])
        if each["kind"] == "NetworkPolicy":
            selectors.append(each["spec"]["podSelector"]["matchLabels"])
    constraints = pod_of(objects).get("topologySpreadConstraints", [])
    selectors += [constraint["labelSelector"]["matchLabels"] for constraint in constraints]

    assert all(selector.items() <= labels for selector in selectors)


def test_the_pool_names_the_service_and_its_port() -> None:
    objects = render(LABELS, {"inferenceExtension": {"extProcPort": 7777}})
    reference = of_kind(objects, "InferencePool")["spec"]["endpointPickerRef"]
    service = of_kind(objects, "Service")
    (port,) = [port for port in service["spec"]["ports"] if port["port"] == reference["port"]["number"]]

    assert service["metadata"]["name"] == reference["name"]
    assert port["targetPort"] == "grpc"


def test_two_replicas_survive_a_rollout_and_an_eviction() -> None:
    objects = render(LABELS)
    deployment = of_kind(objects, "Deployment")["spec"]

    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert {each["topologyKey"] for each in pod_of(objects)["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }


def test_replicas_find_one_another_also_those_that_are_not_ready() -> None:
    objects = render(LABELS)
    (service,) = [each for each in objects if is_of_replicas(each)]
    gateways = of_kind(objects, "Service")

    assert f"--peers-dns={service['metadata']['name']}:9090" in arguments_of(objects)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == gateways["spec"]["selector"]
    # Monitors choose Services by labels and ports by name: no replica must be read twice.
    assert not {port["name"] for port in service["spec"]["ports"]} & {port["name"] for port in gateways["spec"]["ports"]}


def test_one_replica_looks_for_no_other() -> None:
    objects = render(LABELS, {"inferenceExtension": {"replicas": 1}})

    assert not any(is_of_replicas(each) for each in objects)
    assert not any(argument.startswith("--peers-dns") for argument in arguments_of(objects))


def test_the_admin_token_is_a_file_of_its_secret() -> None:
    objects = render(LABELS, {"inferenceExtension": {"adminToken": {"secretName": "epp-admin"}}})
    (mount,) = picker_of(objects)["volumeMounts"]
    (volume,) = pod_of(objects)["volumes"]

    assert "--admin-token-file=/etc/epp/admin/token" in arguments_of(objects)
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], "/etc/epp/admin", True)
    assert volume["secret"] == {"secretName": "epp-admin", "items": [{"key": "token", "path": "token"}]}


def test_replicas_and_hooks_reach_a_port_that_is_kept_for_few() -> None:
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    objects = render(LABELS, {"networkPolicy": {"metricsFrom": [monitoring]}})
    policy = of_kind(objects, "NetworkPolicy")["spec"]
    own = {"podSelector": policy["podSelector"]}
    (metrics,) = [rule for rule in policy["ingress"] if rule["ports"] == [{"port": "metrics"}]]

    assert metrics["from"] == [monitoring, {"podSelector": {"matchLabels": {"app": "my-model-server"}}}, own]
    assert {"ports": [{"port": "metrics"}], "to": [own]} in policy["egress"]


def test_one_replica_has_no_budget_that_would_keep_its_node_from_being_emptied() -> None:
    assert not [each for each in render(CHOICES["one replica"]) if each["kind"] == "PodDisruptionBudget"]


def test_the_lease_is_asked_for_only_by_those_who_elect() -> None:
    assert "--ha-enable-leader-election" in arguments_of(render(LABELS))
    for name in ("one replica", "leader election off", "selector"):
        objects = render(CHOICES[name])
        assert "--ha-enable-leader-election" not in arguments_of(objects)
        assert not [rule for rule in of_kind(objects, "Role")["rules"] if "leases" in rule["resources"]]


def test_who_has_a_selector_reads_pods_alone() -> None:
    assert of_kind(render(CHOICES["selector"]), "Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]


def test_a_change_of_the_configuration_restarts_the_picker() -> None:
    def annotations(text: str) -> dict[str, str]:
        objects = render(LABELS, {"inferenceExtension": {"pluginsCustomConfig": {"a.yaml": text}}})
        found: dict[str, str] = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]
        return found

    assert annotations("a: 1\n")["checksum/config"] != annotations("a: 2\n")["checksum/config"]


@pytest.mark.parametrize("name", CHOICES)
def test_nothing_secret_stands_in_a_config_map_or_in_the_arguments(
    name: str, rendered: Callable[[str], list[Manifest]]
) -> None:
    objects = rendered(name)
    shown = [
        *arguments_of(objects),
        *(text for each in objects if each["kind"] == "ConfigMap" for text in each["data"].values()),
    ]

    assert not [each for each in objects if each["kind"] == "Secret"]
    assert not [text for text in shown if "PRIVATE KEY" in text or "token" in text.lower() or "password" in text.lower()]


@pytest.mark.parametrize("name", CHOICES)
def test_every_object_is_in_the_namespace_of_the_release_and_none_is_for_the_whole_cluster(
    name: str, rendered: Callable[[str], list[Manifest]]
) -> None:
    for each in rendered(name):
        assert each["metadata"]["namespace"] == "default", each["kind"]
        assert not each["kind"].startswith("Cluster")


@pytest.mark.parametrize("kind", MONITORS)
def test_a_monitor_names_a_port_that_is_there(kind: str) -> None:
    objects = render(MONITORS[kind])
    monitor = of_kind(objects, kind)
    (endpoint,) = monitor["spec"]["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
    ports = of_kind(objects, "Service")["spec"]["ports"] if kind == "ServiceMonitor" else picker_of(objects)["ports"]

    assert endpoint["port"] in {port["name"] for port in ports}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_version_is_that_of_the_project() -> None:
    project = (CHART.parents[2] / "pyproject.toml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert f'version = "{chart["appVersion"]}"' in project


def test_the_memory_limit_holds_the_bodies_that_may_wait() -> None:
    limit = yaml.safe_load((CHART / "values.yaml").read_text())["inferenceExtension"]["resources"]["limits"]["memory"]

    assert limit == "1Gi"
    assert Settings().limits.max_buffered_bytes + (150 << 20) < 1 << 30


def test_the_default_of_the_api_stays_when_nothing_is_configured() -> None:
    """Without a file the picker uses its own defaults; so the chart brings none."""
    assert not [each for each in render(LABELS) if each["kind"] == "ConfigMap"]


def test_the_configuration_in_the_values_is_a_good_example() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    begin = lines.index("  #  plugins.yaml: |") + 1
    text = "\n".join(line.removeprefix("  #    ") for line in lines[begin : begin + 3])

    load_settings({}, read_document(text, "values.yaml"), needs_source=False)


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no labels": ({}, "inferencePool.modelServers.matchLabels: expected the labels"),
    "misspelt": (merged(LABELS, {"inferenceExtension": {"replica": 3}}), "additional properties 'replica' not allowed"),
    "not a number": (merged(LABELS, {"inferenceExtension": {"replicas": "two"}}), "/inferenceExtension/replicas"),
    "no port": (merged(LABELS, {"inferencePool": {"targetPorts": []}}), "/inferencePool/targetPorts"),
    "nine ports": (
        merged(LABELS, {"inferencePool": {"targetPorts": [{"number": 8000 + i} for i in range(9)]}}),
        "/inferencePool/targetPorts",
    ),
    "two ports of an older pool": (
        merged(
            LABELS,
            {
                "inferencePool": {
                    "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
                    "targetPorts": [{"number": 1}, {"number": 2}],
                }
            },
        ),
        "expected one port with inference.networking.x-k8s.io/v1alpha2, found 2",
    ),
    "no selector": (
        {"inferenceExtension": {"endpointsServer": {"createInferencePool": False}}},
        "endpointsServer.endpointSelector: expected a label selector",
    ),
    "route without a pool": (
        merged(CHOICES["selector"], {"experimentalHttpRoute": {"enabled": True}}),
        "experimentalHttpRoute.enabled: expected false",
    ),
    "objectives without a pool": (
        merged(CHOICES["selector"], {"inferenceObjectives": [{"name": "a", "priority": 1}]}),
        "inferenceObjectives: expected none",
    ),
    "unknown file": (
        merged(LABELS, {"inferenceExtension": {"pluginsConfigFile": "c.yaml", "pluginsCustomConfig": {"a.yaml": ""}}}),
        "expected a file of pluginsCustomConfig (a.yaml), found c.yaml",
    ),
    "which file": (
        merged(LABELS, {"inferenceExtension": {"pluginsCustomConfig": {"a.yaml": "", "b.yaml": ""}}}),
        "expected the file of pluginsCustomConfig that counts (a.yaml, b.yaml)",
    ),
    "headless on another port": (
        merged(LABELS, {"inferenceExtension": {"service": {"headless": True}, "extProcPort": 80}}),
        "expected 9002 with a headless Service, found 80",
    ),
    "Secret without TLS": (
        merged(LABELS, {"inferenceExtension": {"tls": {"enabled": False, "secretName": "a"}}}),
        "inferenceExtension.tls.enabled: expected true",
    ),
    "Envoy without a shell": (
        merged(LABELS, {"standaloneEnvoy": {"enabled": True, "image": "envoyproxy/envoy:distroless-v1.40.0"}}),
        "standaloneEnvoy.image: expected an image with bash",
    ),
    "two masters of TLS": (
        merged(LABELS, {"provider": {"istio": {"destinationRule": {"trafficPolicy": {"tls": {"mode": "DISABLE"}}}}}}),
        "trafficPolicy: expected no tls",
    ),
    "traces": (merged(LABELS, {"inferenceExtension": {"tracing": {"enabled": True}}}), "/inferenceExtension/tracing/enabled"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_mean_nothing_are_refused_with_a_sentence_that_helps(name: str) -> None:
    values, sentence = REFUSED[name]

    assert sentence in refusal(values)


def test_values_of_the_reference_chart_are_accepted() -> None:
    """Its own defaults of v1.5.0, without those of what it does not have here."""
    values = {
        "inferenceExtension": {
            "replicas": 1,
            "image": {"registry": "r.example", "repository": "a/epp", "tag": "v1.5.0", "pullPolicy": "Always"},
            "extProcPort": 9002,
            "failureMode": "FailOpen",
            "env": [],
            "pluginsConfigFile": "default-plugins.yaml",
            "extraContainerPorts": [],
            "extraServicePorts": [],
            "flags": {"v": 1},
            "affinity": {},
            "tolerations": [],
            "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "16Gi"}},
            "sidecar": {"enabled": False},
            "monitoring": {
                "interval": "10s",
                "prometheus": {"enabled": False, "auth": {"enabled": True, "secretName": "s"}, "extraLabels": {}},
            },
            "tracing": {"enabled": False, "otelExporterEndpoint": "http://localhost:4317"},
            "latencyPredictor": {"enabled": False},
            "metricsDataSource": {"scheme": "http", "path": "/metrics", "insecureSkipVerify": True},
        },
        "inferencePool": {
            "targetPorts": [{"number": 8000}],
            "modelServerType": "vllm",
            "modelServerProtocol": "http",
            "parser": "",
            "apiVersion": "inference.networking.k8s.io/v1",
            "modelServers": {"matchLabels": {"app": "vllm-qwen3-32b"}},
        },
        "provider": {
            "name": "none",
            "gke": {"autopilot": False},
            "istio": {"destinationRule": {"host": "", "trafficPolicy": {}}},
        },
        "experimentalHttpRoute": {
            "enabled": False,
            "inferenceGatewayName": "inference-gateway",
            "requestTimeout": "300s",
        },
        "inferenceObjectives": [],
    }

    assert of_kind(render(values), "InferencePool")["spec"]["selector"]["matchLabels"] == {"app": "vllm-qwen3-32b"}
