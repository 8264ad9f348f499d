"""deploy/model-servers: one manifest for each engine, with the times that `epp drain --advise` gives."""

import re
from typing import Any

import msgspec
import pytest

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.objects import Pod
from epp.discovery.kubernetes.pods import IpFamily, PodReader
from epp.drain.advice import advise
from epp.drain.losses import Present, losses
from epp.drain.shutdown import ENGINES, EngineShutdown
from epp.pool.endpoint import endpoint_address
from epp.scrape.catalog import EngineCatalog
from tests.deploy.model_servers import EPP_URL, FOLDER, HOOK_FOLDER, START_S, manifest, need
from tests.deploy.rendering import KUSTOMIZE, LABELS, documents, kustomize, of_kind, render
from tests.deploy.test_documents import table

every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
README = FOLDER / "README.md"
_SGLANG_GIVES_UP_S = 20


def text(engine: EngineShutdown) -> str:
    return (FOLDER / f"{engine.name}.yaml").read_text()


def pod_spec(engine: EngineShutdown) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(documents(text(engine)), "Deployment")["spec"]["template"]["spec"]
    return spec


def container(engine: EngineShutdown) -> dict[str, Any]:
    (found,) = pod_spec(engine)["containers"]
    return found  # type: ignore[no-any-return]


def script(engine: EngineShutdown) -> str:
    found: str = of_kind(documents(text(engine)), "ConfigMap")["data"]["drain.sh"]
    return found


def test_there_is_one_for_each_engine_and_no_other() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(ENGINES)


@every_engine
def test_it_is_what_the_generator_writes(engine: EngineShutdown) -> None:
    assert text(engine) == manifest(engine), "`python -m tests.deploy.model_servers` writes it anew"


@every_engine
def test_its_times_are_those_that_are_advised(engine: EngineShutdown) -> None:
    advice = advise(need(engine))
    words = [*container(engine).get("args", []), *(each.get("value", "") for each in container(engine)["env"])]

    assert pod_spec(engine)["terminationGracePeriodSeconds"] == advice.grace_s
    assert f"--max-wait {advice.max_wait_s}s" in text(engine)
    if engine.deadline is None:
        assert not any(re.search("shutdown-timeout|exit-timeout|termination-timeout", word) for word in words)
    else:
        assert advice.deadline_s is not None
        assert words.count(engine.deadline.written(advice.deadline_s)) == 1


@every_engine
def test_what_is_in_it_loses_nothing(engine: EngineShutdown) -> None:
    (max_wait_s,) = set(map(float, re.findall(r"--max-wait (\d+)s", text(engine).partition("apiVersion")[0])))
    there = Present(grace_s=pod_spec(engine)["terminationGracePeriodSeconds"], max_wait_s=max_wait_s)

    assert losses(need(engine), there) == ()


@every_engine
def test_load_is_told_as_far_as_the_engine_can(engine: EngineShutdown) -> None:
    words = " ".join(container(engine).get("args", []))
    files = str(of_kind(documents(text(engine)), "ConfigMap")["data"])

    for flag in engine.metrics_flags:
        setting = flag.partition(" in ")[0]
        assert setting in words or setting in files


@every_engine
def test_the_hook_is_mounted_where_it_is_called(engine: EngineShutdown) -> None:
    config_map = of_kind(documents(text(engine)), "ConfigMap")
    volumes = {each["name"]: each for each in pod_spec(engine)["volumes"]}
    mounts = {each["mountPath"]: each["name"] for each in container(engine)["volumeMounts"]}
    (_, file) = container(engine)["lifecycle"]["preStop"]["exec"]["command"]

    assert volumes[mounts[HOOK_FOLDER]]["configMap"]["name"] == config_map["metadata"]["name"]
    assert file == f"{HOOK_FOLDER}/drain.sh"
    assert set(mounts.values()) == set(volumes)
    assert EPP_URL in script(engine)


@every_engine
def test_a_person_can_read_the_script_in_it(engine: EngineShutdown) -> None:
    assert "\n  drain.sh: |\n    #!/bin/sh\n" in text(engine)


@every_engine
def test_the_picker_makes_one_endpoint_of_its_pod(engine: EngineShutdown) -> None:
    template = of_kind(documents(text(engine)), "Deployment")["spec"]["template"]
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    pod = msgspec.convert(
        {"metadata": {"name": "a", "uid": "u", **template["metadata"]}, "spec": template["spec"], "status": status}, Pod
    )
    ((key, value),) = LABELS["inferencePool"]["modelServers"]["matchLabels"].items()
    reader = PodReader(family=IpFamily.AUTO, known_engine=lambda name: EngineCatalog().named(name).name)

    found = reader.read(pod, PoolDefinition.from_flags(f"{key}={value}", (engine.port,)))

    (spec,) = found.specs
    assert found.unusable is None
    assert found.problems == ()
    assert spec.engine == engine.name
    assert spec.address == endpoint_address("10.0.0.1", engine.port)
    assert spec.metrics.port == engine.metrics_port


@every_engine
def test_the_port_that_it_declares_is_the_one_it_opens(engine: EngineShutdown) -> None:
    found = container(engine)
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    said = " ".join([*found.get("args", []), *(str(each.get("value")) for each in found["env"])])

    assert ports["http"] == engine.port
    assert re.search(rf"(port[= ]|PORT|:|^| ){engine.port}\b", said), said
    assert {probe["httpGet"]["port"] for name, probe in found.items() if name.endswith("Probe")} == {"http"}


@every_engine
def test_a_slow_start_is_no_reason_to_restart(engine: EngineShutdown) -> None:
    probe = container(engine)["startupProbe"]

    assert probe["failureThreshold"] * probe["periodSeconds"] >= START_S


def test_probes_of_sglang_wait_longer_than_its_own_check() -> None:
    probes = [probe for name, probe in container(ENGINES["sglang"]).items() if name.endswith("Probe")]

    assert len(probes) == 3
    assert all(probe["timeoutSeconds"] > _SGLANG_GIVES_UP_S for probe in probes)


def test_flags_of_llamacpp_are_two_words() -> None:
    assert not any("=" in word for word in container(ENGINES["llamacpp"])["args"])


@every_engine
def test_names_of_services_do_not_become_settings(engine: EngineShutdown) -> None:
    """A Service called `vllm` makes VLLM_PORT, which vLLM takes for its own."""
    assert pod_spec(engine)["enableServiceLinks"] is False


@every_engine
def test_nothing_goes_before_another_is_ready(engine: EngineShutdown) -> None:
    deployment = of_kind(documents(text(engine)), "Deployment")

    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_table_of_times_is_what_is_advised() -> None:
    rows = {name.partition(".yaml")[0].strip("["): cells for name, *cells in table(README.read_text(), "manifest")}

    assert set(rows) == set(ENGINES)
    for name, (max_wait, flag, grace, *_) in rows.items():
        engine, advice = ENGINES[name], advise(need(ENGINES[name]))
        assert max_wait == f"{advice.max_wait_s} s"
        assert grace == f"{advice.grace_s} s"
        assert flag == ("–" if engine.deadline is None else f"`{engine.deadline.written(advice.deadline_s or 0)}`")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())

    assert links
    assert all((FOLDER / link).exists() for link in links)


@pytest.mark.flow
@pytest.mark.parametrize("way", ["chart", "overlay"])
def test_the_picker_is_called_where_it_is_put(way: str) -> None:
    objects = render(LABELS) if way == "chart" else kustomize(KUSTOMIZE / "overlays" / "gateway")
    service = of_kind(objects, "Service")
    ports = [port["port"] for port in service["spec"]["ports"]]

    assert f"http://{service['metadata']['name']}:9090" == EPP_URL
    assert 9090 in ports
