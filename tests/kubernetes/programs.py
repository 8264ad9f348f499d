"""The programs and files that come from elsewhere: kube-apiserver, etcd, kubectl, helm, and the CRDs of inference pools.

A folder with `etcd`, `kube-apiserver` and `kubectl` in `KUBEBUILDER_ASSETS` is used instead of what is installed or built.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.manifest import Manifest
from tests.tools import do_without, module_folder, require_go_program, require_go_tool, require_tool

ASSETS = "KUBEBUILDER_ASSETS"
APISERVER_MODULE = Path(__file__).parent / "apiserver"
HELM = "helm.sh/helm/v4/cmd/helm@v4.3.2"
_EXTENSION = "sigs.k8s.io/gateway-api-inference-extension"
# Each is the last version that has them: later ones moved objectives and rewrites to the group llm-d.ai.
_PUBLISHED_CRDS = (
    ("v1.6.0", "inference.networking.k8s.io_inferencepools.yaml"),
    ("v1.5.0", "inference.networking.x-k8s.io_inferenceobjectives.yaml"),
    ("v1.5.0", "inference.networking.x-k8s.io_inferencemodelrewrites.yaml"),
    ("v1.4.0", "inference.networking.x-k8s.io_inferencepools.yaml"),
)
_LONG_S = 5.0
_LLM_D_CRDS = Path(__file__).parent / "llm_d_crds.yaml"


def require_kube_apiserver() -> Path:
    """kube-apiserver, which is built if need be (about 4 minutes on 2 cores, once)."""
    version = re.search(r"^\tk8s\.io/kubernetes (v\S+)", (APISERVER_MODULE / "go.mod").read_text(), re.MULTILINE)
    assert version is not None
    # Else it calls itself v0.0.0, which is too old for many a chart.
    names = {"k8s.io/component-base/version.gitVersion": version[1]}
    return _asset("kube-apiserver") or require_go_program("kube-apiserver", APISERVER_MODULE, variables=names)


def require_etcd() -> Path:
    """etcd (Debian `etcd-server`)."""
    return _asset("etcd") or require_tool("etcd")


def require_kubectl() -> Path:
    """kubectl, which comes with the development dependencies."""
    return _asset("kubectl") or require_tool("kubectl")


def require_helm() -> Path:
    """helm, which is built if need be (about 2 minutes, once)."""
    return require_go_tool("helm", HELM)


def crds() -> list[Manifest]:
    """The custom resource definitions that a picker may meet, of both API groups and both versions of InferencePool."""
    files = [module_folder(f"{_EXTENSION}@{version}") / "config" / "crd" / "bases" / name for version, name in _PUBLISHED_CRDS]
    return [document for file in (*files, _LLM_D_CRDS) for document in _documents(file)]


def get_all(say: Callable[[str], None]) -> None:
    """Build and download all that takes minutes, once, which no single test should pay for.

    What cannot be had is left to the test that needs it, which then says so.

    Args:
        say: Takes one line for each that took long.
    """
    slow: dict[str, Callable[[], object]] = {
        "kube-apiserver": require_kube_apiserver, "helm": require_helm, "custom resource definitions": crds
    }  # fmt: skip
    for what, get in slow.items():
        begin_s = time.monotonic()
        try:
            get()
        except (pytest.skip.Exception, pytest.fail.Exception):
            continue
        took_s = time.monotonic() - begin_s
        if took_s > _LONG_S:
            say(f"{what}: built or downloaded in {took_s:.0f} s, and kept")


def _documents(file: Path) -> Iterator[Manifest]:
    for document in yaml.safe_load_all(file.read_text()):
        if document is not None:
            document.pop("status", None)  # the generator's leftovers
            yield document


def _asset(name: str) -> Path | None:
    folder = os.environ.get(ASSETS)
    if not folder:
        return None
    found = shutil.which(name, path=folder)
    if found is None:
        do_without(f"{name}: expected in {ASSETS}, which is {folder}, not found")
    return Path(found)
