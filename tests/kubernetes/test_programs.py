"""What a contributor brings in KUBEBUILDER_ASSETS goes before what is installed or built."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.programs import ASSETS, get_all, require_etcd, require_kube_apiserver, require_kubectl

PROGRAMS = {"etcd": require_etcd, "kube-apiserver": require_kube_apiserver, "kubectl": require_kubectl}


@pytest.mark.parametrize(("name", "require"), PROGRAMS.items(), ids=PROGRAMS)
def test_programs_come_from_kubebuilder_assets_when_it_is_set(
    name: str, require: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv(ASSETS, str(tmp_path))

    assert require() == tmp_path / name


@pytest.mark.parametrize(("name", "require"), PROGRAMS.items(), ids=PROGRAMS)
def test_what_kubebuilder_assets_lacks_is_missing_and_not_built(
    name: str, require: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS, str(tmp_path))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match=f"{name}: expected in KUBEBUILDER_ASSETS, which is .*, not found"):
        require()


def test_what_cannot_be_had_beforehand_is_left_to_the_test_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []

    get_all(said.append)

    assert said == []
