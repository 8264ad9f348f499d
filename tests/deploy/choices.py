"""Combinations of values that between them turn everything in the chart on and off."""

from collections.abc import Mapping
from typing import Any

import yaml

from tests.deploy.rendering import EXAMPLES, LABELS, merged


def _epp(**values: Any) -> Mapping[str, Any]:
    return merged(LABELS, {"inferenceExtension": values})


_CONFIGURATION = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nscrape: {interval: 100ms}\n"

CHOICES: Mapping[str, Mapping[str, Any]] = {
    "defaults": LABELS,
    "one replica": _epp(replicas=1),
    "leader election off": _epp(enableLeaderElection=False),
    "older pool": merged(LABELS, {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}}),
    "pool that is there already": {"inferencePool": {"create": False}},
    "many ports, gRPC": merged(
        LABELS, {"inferencePool": {"targetPorts": [{"number": 8000 + i} for i in range(8)], "modelServerProtocol": "grpc"}}
    ),
    "selector": {
        "inferenceExtension": {
            "endpointsServer": {
                "createInferencePool": False,
                "endpointSelector": "app=x,role in (decode,both)",
                "targetPorts": "8000, 8001",
            }
        }
    },
    "configuration": _epp(pluginsCustomConfig={"plugins.yaml": _CONFIGURATION}),
    "two configurations": _epp(
        pluginsConfigFile="b.yaml", pluginsCustomConfig={"a.yaml": _CONFIGURATION, "b.yaml": _CONFIGURATION}
    ),
    "file name of the reference chart": _epp(pluginsConfigFile="default-plugins.yaml"),
    "no TLS, headless": _epp(tls={"enabled": False}, service={"headless": True}),
    "TLS from Secrets": _epp(tls={"secretName": "cert", "clientCaSecretName": "ca"}),
    "admin token": _epp(adminToken={"secretName": "epp-admin"}),
    "no hook": _epp(drain={"preStopSeconds": 0, "timeoutSeconds": 20}),
    "flags, image, IPv6": _epp(
        flags={"log-level": "debug", "transport": "socket", "enable-pprof": True, "v": 1},
        image={"registry": "registry.example.com/team/", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        imagePullSecrets=[{"name": "pull"}],
        endpointIpFamily="ipv6",
        metricsDataSource={"scheme": "https", "path": "/metrics", "insecureSkipVerify": False},
        env=[{"name": "TZ", "value": "UTC"}],
    ),
    "scheduling": _epp(
        topologySpreadConstraints=[],
        tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        nodeSelector={"kubernetes.io/os": "linux"},
        priorityClassName="system-cluster-critical",
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
        podAnnotations={"a": "b"},
        podLabels={"team": "x"},
        podDisruptionBudget={"enabled": False},
    ),
    "more ports and volumes": _epp(
        extraContainerPorts=[{"name": "zmq", "containerPort": 5557}],
        extraServicePorts=[{"name": "zmq", "port": 5557}],
        volumes=[{"name": "more", "emptyDir": {}}],
        volumeMounts=[{"name": "more", "mountPath": "/more"}],
    ),
    "route, objectives, Istio": merged(
        LABELS,
        {
            "experimentalHttpRoute": {"enabled": True},
            "inferenceObjectives": [{"name": "batch", "priority": -1}],
            "provider": {"name": "istio", "istio": {"destinationRule": {
                "trafficPolicy": {"connectionPool": {"http": {"maxRequestsPerConnection": 256000}}}}}},
        },
    ),
    "narrow network policy": merged(
        LABELS,
        {
            "networkPolicy": {
                "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}],
                "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
                "metricsPorts": [9400],
            }
        },
    ),
    "own account, no policy": merged(
        LABELS,
        {"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False}, "networkPolicy": {"enabled": False}},
    ),
    "Envoy beside it": merged(LABELS, {"standaloneEnvoy": {"enabled": True, "servicePort": 80}}),
    "standalone": yaml.safe_load((EXAMPLES / "values-standalone.yaml").read_text()),
    "own certificate": yaml.safe_load((EXAMPLES / "values-tls-from-cert-manager.yaml").read_text()),
}  # fmt: skip
"""Name of the combination → values."""

MONITORS: Mapping[str, Mapping[str, Any]] = {
    kind: _epp(monitoring={"prometheus": {"enabled": True, "kind": kind, "extraLabels": {"release": "prometheus"}}})
    for kind in ("ServiceMonitor", "PodMonitor")
}
"""Values that need the Prometheus operator."""
