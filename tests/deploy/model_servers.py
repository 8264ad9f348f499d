"""The manifests of deploy/model-servers, made of the same numbers as `epp drain --advise`.

`python -m tests.deploy.model_servers` writes them anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from click.testing import CliRunner

from epp.cli.drain import command as drain
from epp.drain.advice import Advice, Need, advise
from epp.drain.shutdown import ENGINES, EngineShutdown
from tests.deploy.rendering import DEPLOY, LABELS, RELEASE
from tests.kubernetes.manifest import Manifest

FOLDER = DEPLOY / "model-servers"
SLOWEST_S = 120.0
EPP_URL = f"http://{RELEASE}-epp:9090"
HOOK_FOLDER = "/etc/inference-epp"
START_S = 1800
"""Loading a large model from a slow disk, or downloading it."""
_PERIOD_S = 5
_PROBE_S = 5
MODEL = "Qwen/Qwen3-8B"
_MODELS = {"name": "models", "persistentVolumeClaim": {"claimName": "my-models", "readOnly": True}}
_MODELS_MOUNT = {"name": "models", "mountPath": "/models", "readOnly": True}
_HUGGING_FACE = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}}}
_SHARED_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
_SHARED_MEMORY_MOUNT = {"name": "shared-memory", "mountPath": "/dev/shm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """What is the engine's own in its manifest.

    Attributes:
        command: In place of the image's; empty leaves that.
        arguments: Before those that are advised.
        ready: Path that answers 200 when requests are served.
        alive: Path that answers 200 while it makes sense not to restart.
        probe_s: What a healthy server may take to answer either.
        probe_period_s: How often it is asked once it serves.
        files: More files in the ConfigMap, by name.
        annotations: More annotations of the pods.
    """

    image: str
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ready: str = "/health"
    alive: str = "/health"
    probe_s: int = _PROBE_S
    probe_period_s: int = _PERIOD_S
    environment: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Mapping[str, Any]] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


SERVERS: Mapping[str, ModelServer] = {
    "vllm": ModelServer(
        image="vllm/vllm-openai:v0.32.0",
        arguments=(f"--model={MODEL}", "--port=8000"),
        environment=(_HUGGING_FACE,),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
    ),
    "sglang": ModelServer(
        image="lmsysorg/sglang:v0.5.5",
        command=("python3", "-m", "sglang.launch_server"),
        arguments=(f"--model-path={MODEL}", "--host=0.0.0.0", "--port=30000", "--enable-metrics"),
        # It generates a token for each probe, which takes 1 s at least and 20 s at most; a probe that gives up before that
        # makes the server call itself unhealthy, and then SIGTERM cuts what runs.
        probe_s=25,
        probe_period_s=30,
        environment=(_HUGGING_FACE,),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
    ),
    "trtllm-serve": ModelServer(
        image="nvcr.io/nvidia/tensorrt-llm/release:1.2.0",
        command=("trtllm-serve",),
        arguments=(MODEL, "--host=0.0.0.0", "--port=8000", f"--extra_llm_api_options={HOOK_FOLDER}/options.yaml"),
        environment=(_HUGGING_FACE,),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
        files={"options.yaml": "return_perf_metrics: true\n"},
    ),
    "triton-tensorrt-llm": ModelServer(
        image="nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3",
        command=("tritonserver",),
        arguments=("--model-repository=/models", "--http-port=8000", "--metrics-port=8002"),
        ready="/v2/health/ready",
        alive="/v2/health/live",
        volumes=(_MODELS, _SHARED_MEMORY),
        mounts=(_MODELS_MOUNT, _SHARED_MEMORY_MOUNT),
        annotations={"inference-epp/metrics-port": "8002"},
    ),
    "llamacpp": ModelServer(
        image="ghcr.io/ggml-org/llama.cpp:server-cuda",
        # It takes flags and values as two words only.
        arguments=(
            *("--model", "/models/model.gguf", "--host", "0.0.0.0", "--port", "8080"),
            *("--parallel", "4", "--metrics"),
        ),
        volumes=(_MODELS,),
        mounts=(_MODELS_MOUNT,),
    ),
    "tgi": ModelServer(
        image="ghcr.io/huggingface/text-generation-inference:3.3.6",
        arguments=(f"--model-id={MODEL}", "--port=3000"),
        # After a failed request, a probe runs the model.
        probe_s=10,
        probe_period_s=15,
        environment=(_HUGGING_FACE,),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
    ),
    "ollama": ModelServer(
        image="ollama/ollama:0.12.6",
        ready="/api/version",
        alive="/api/version",
        environment=(
            {"name": "OLLAMA_HOST", "value": "0.0.0.0:11434"},
            {"name": "OLLAMA_NUM_PARALLEL", "value": "4"},
            {"name": "OLLAMA_KEEP_ALIVE", "value": "-1"},
        ),
        volumes=({"name": "models", "persistentVolumeClaim": {"claimName": "my-models"}},),
        mounts=({"name": "models", "mountPath": "/root/.ollama"},),
    ),
    "lmdeploy": ModelServer(
        image="openmmlab/lmdeploy:v0.16.0",
        command=("lmdeploy", "serve", "api_server"),
        arguments=(MODEL, "--server-name=0.0.0.0", "--server-port=23333"),
        environment=(_HUGGING_FACE,),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
    ),
    "nim": ModelServer(
        image="nvcr.io/nim/meta/llama-3.1-8b-instruct:2.0.12",
        ready="/v1/health/ready",
        alive="/v1/health/live",
        environment=(
            {"name": "NGC_API_KEY", "valueFrom": {"secretKeyRef": {"name": "ngc-api-key", "key": "NGC_API_KEY"}}},
            {"name": "NIM_SERVER_PORT", "value": "8000"},
        ),
        volumes=(_SHARED_MEMORY,),
        mounts=(_SHARED_MEMORY_MOUNT,),
    ),
}
"""By the name of the engine."""


def need(engine: EngineShutdown) -> Need:
    """What the manifests are made for."""
    return Need(engine=engine, slowest_s=SLOWEST_S)


def script_flags(engine: EngineShutdown, advice: Advice) -> tuple[str, ...]:
    """What the script is printed with."""
    return (
        *("--print-script", "--engine", engine.name, "--epp-url", EPP_URL),
        *("--min-wait", f"{advice.min_wait_s:g}s", "--max-wait", f"{advice.max_wait_s}s"),
    )


def script(engine: EngineShutdown, advice: Advice) -> str:
    """The preStop hook."""
    printed = CliRunner().invoke(drain, [*script_flags(engine, advice)])
    assert printed.exit_code == 0, printed.output
    return printed.stdout


def arguments(engine: EngineShutdown, server: ModelServer, advice: Advice) -> list[str]:
    """What the server is started with."""
    found = list(server.arguments)
    if engine.deadline is not None and engine.deadline.variable is None and advice.deadline_s is not None:
        found.append(engine.deadline.written(advice.deadline_s))
    return found


def environment(engine: EngineShutdown, server: ModelServer, advice: Advice) -> list[Mapping[str, Any]]:
    """Its variables, and those of the hook."""
    found = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, *server.environment]
    if engine.deadline is not None and engine.deadline.variable is not None and advice.deadline_s is not None:
        found.append({"name": engine.deadline.variable, "value": engine.deadline.written(advice.deadline_s)})
    return found


def objects(engine: EngineShutdown) -> list[Manifest]:
    """ConfigMap and Deployment of one engine."""
    advice = advise(need(engine))
    return [_config_map(engine, advice), _deployment(engine, advice)]


def _name(engine: EngineShutdown) -> str:
    return f"my-{engine.name}"


def _config_map(engine: EngineShutdown, advice: Advice) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{_name(engine)}-hook"},
        "data": {**SERVERS[engine.name].files, "drain.sh": script(engine, advice)},
    }


def _deployment(engine: EngineShutdown, advice: Advice) -> Manifest:
    server = SERVERS[engine.name]
    own = {"app.kubernetes.io/name": engine.name, "app.kubernetes.io/instance": _name(engine)}
    pool = LABELS["inferencePool"]["modelServers"]["matchLabels"]
    metadata: dict[str, Any] = {"labels": {**own, **pool, "inference-epp/engine": engine.name}}
    if server.annotations:
        metadata["annotations"] = dict(server.annotations)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _name(engine), "labels": own},
        "spec": {
            "replicas": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": own},
            "template": {
                "metadata": metadata,
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": advice.grace_s,
                    "containers": [_container(engine, server, advice)],
                    "volumes": [
                        {"name": "hook", "configMap": {"name": f"{_name(engine)}-hook"}},
                        *server.volumes,
                    ],
                },
            },
        },
    }


def _container(engine: EngineShutdown, server: ModelServer, advice: Advice) -> dict[str, Any]:
    container: dict[str, Any] = {"name": engine.name, "image": server.image}
    if server.command:
        container["command"] = list(server.command)
    if found := arguments(engine, server, advice):
        container["args"] = found
    ports = [{"name": "http", "containerPort": engine.port}]
    if engine.metrics_port is not None:
        ports.append({"name": "metrics", "containerPort": engine.metrics_port})

    def probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": period_s,
            "timeoutSeconds": server.probe_s,
            "failureThreshold": failures,
        }

    return {
        **container,
        "env": environment(engine, server, advice),
        "ports": ports,
        "startupProbe": probe(server.ready, _PERIOD_S, START_S // _PERIOD_S),
        "readinessProbe": probe(server.ready, server.probe_period_s, 3),
        "livenessProbe": probe(server.alive, server.probe_period_s, 6),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", f"{HOOK_FOLDER}/drain.sh"]}}},
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [
            {"name": "hook", "mountPath": HOOK_FOLDER, "readOnly": True},
            *server.mounts,
        ],
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifest(engine: EngineShutdown) -> str:
    """The text of the file."""
    advice = advise(need(engine))
    head = (
        f"# {engine.title}: requests of up to {SLOWEST_S:g} s survive the end of a pod. README.md beside this says how to adapt it.\n"
        f"# Its times are those of: epp drain --advise --engine {engine.name} --slowest-request {SLOWEST_S:g}s\n"
        f"# drain.sh is what this prints: epp drain {' '.join(script_flags(engine, advice))}\n"
        "# Made by `python -m tests.deploy.model_servers`.\n"
    )
    documents = (
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20) for each in objects(engine)
    )
    return head + "---\n".join(documents)


def main() -> None:
    """Write all of them."""
    for engine in ENGINES.values():
        (FOLDER / f"{engine.name}.yaml").write_text(manifest(engine))


if __name__ == "__main__":
    main()
