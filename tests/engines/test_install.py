"""Where real servers are looked for, and what of vLLM's requirements is installed. These tests need none of them."""

from pathlib import Path

import pytest

from tests.engines.install import Installed, InstallError, install_llamacpp, needed


def test_what_a_text_model_needs_is_installed_with_versions_and_extras() -> None:
    requirements = [
        "regex",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'llguidance<1.8.0,>=1.7.0; python_version >= "3.8"',
    ]

    assert needed(requirements) == ["regex", "fastapi[standard]<0.137.0,>=0.133.0", "llguidance<1.8.0,>=1.7.0"]


def test_builds_of_torch_other_platforms_and_extras_are_left_out() -> None:
    requirements = [
        'torch==2.13.0+cpu; python_version >= "3.8"',
        "torchvision",
        'setuptools<81; python_version < "3.8"',
        'pandas; extra == "bench"',
    ]

    assert needed(requirements) == []


def test_servers_that_are_named_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_SERVER", "/somewhere/llama-server")
    monkeypatch.setenv("VLLM_PYTHON", "/elsewhere/python")
    places = Installed(tmp_path)

    assert places.llama_server == Path("/somewhere/llama-server")
    assert places.vllm_python == Path("/elsewhere/python")


def test_a_failed_installation_says_what_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = Installed(tmp_path)
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    places.llama_model.touch()

    with pytest.raises(InstallError, match=r"expected .*llamacpp/bin/python to run, found: No such file or directory"):
        install_llamacpp(places)
