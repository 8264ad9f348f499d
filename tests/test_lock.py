"""requirements-dev.lock against pyproject.toml, without asking any package index."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements-dev.lock").read_text()
PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+).*\n(?P<rest>(?: .*\n)*)", re.MULTILINE)
PINS = {pin["name"]: pin for pin in PIN.finditer(LOCK)}
DIRECT = re.compile(r"^ +# +(?:via +)?inference-epp(?: |$)", re.MULTILINE)
"""How the lock says that pyproject.toml itself asks for a package."""


def requirements() -> list[Requirement]:
    """Everything that pyproject.toml asks for; references of the project to itself are left out."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in extras for line in extra),
        *PROJECT["dependency-groups"]["dev"],
    ]
    return [r for r in map(Requirement, lines) if canonicalize_name(r.name) != PROJECT["project"]["name"]]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_requirement_is_locked_at_a_version_it_allows(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)

    assert name in PINS, "run `make lock`"
    assert requirement.specifier.contains(PINS[name]["version"]), "run `make lock`"
    assert DIRECT.search(PINS[name]["rest"]), "run `make lock`"


def test_nothing_is_locked_that_no_requirement_asks_for() -> None:
    asked_for = {canonicalize_name(requirement.name) for requirement in requirements()}

    assert {name for name, pin in PINS.items() if DIRECT.search(pin["rest"])} == asked_for
    for name, pin in PINS.items():
        askers = re.findall(r"^ +# +(?:via +)?(\S+)", pin["rest"].replace("# via\n", "\n"), re.MULTILINE)
        assert askers, name
        assert set(askers) <= PINS.keys() | {"inference-epp"}, name


def test_each_locked_package_has_its_hashes_and_names_no_index() -> None:
    lines_of_pins = [line for line in LOCK.splitlines() if line and line[0] not in " #"]

    assert len(lines_of_pins) == len(PINS)
    assert all("--hash=sha256:" in pin["rest"] for pin in PINS.values())
    assert "://" not in LOCK
    assert "--index" not in LOCK
