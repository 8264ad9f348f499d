"""The image. Nothing here builds one: the steps of the Dockerfile are done without Docker, and what they leave is started."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import requires
from pathlib import Path

import aiohttp
import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import Stage, stages
from tests.deploy.rendering import DEPLOY
from tests.flows.epp_process import wait_until
from tests.tools import do_without

ROOT = DEPLOY.parent
LOCK = DEPLOY / "requirements.lock"
BUILD_LOCK = DEPLOY / "requirements-build.lock"
UID = 65532
_STEP_S = 900
_PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<pin>[^\\\n]+?) *\\\n(?P<hashes>(?: +--hash=\S+(?: \\)?\n?)+)", re.MULTILINE)
_NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|Max retries exceeded")


def pins(file: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Package → its version (with the marker) and its hashes."""
    return {
        pin["name"]: (pin["pin"].strip(), frozenset(re.findall(r"sha256:[0-9a-f]{64}", pin["hashes"])))
        for pin in _PIN.finditer(file.read_text())
    }


def needed(requirements: Iterator[Requirement] | Sequence[Requirement]) -> set[str]:
    """Everything that has to be installed for these on this machine, by what the installed packages say."""
    found: set[str] = set()
    waiting = [(requirement, "") for requirement in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(name)
        for line in requires(name) or ():
            waiting += [(Requirement(line), each) for each in ("", *requirement.extras)]
    return found


def applies(pin: str) -> bool:
    """Whether a pin is for this machine."""
    _, _, marker = pin.partition(" ; ")
    return not marker or Marker(marker).evaluate()


def project() -> list[Requirement]:
    """What the picker itself asks for, without extras."""
    return [Requirement(line) for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]


@pytest.mark.parametrize("file", [LOCK, BUILD_LOCK], ids=lambda file: file.name)
def test_the_image_has_the_versions_that_are_tested(file: Path) -> None:
    tested, here = pins(ROOT / "requirements-dev.lock"), pins(file)

    assert len(here) == len([line for line in file.read_text().splitlines() if line and line[0] not in " #"])
    for name, (pin, hashes) in here.items():
        assert pin.split()[0] == tested[name][0].split()[0], f"{name}: run `make lock`"
        assert hashes == tested[name][1], f"{name}: run `make lock`"


def test_the_image_has_what_the_picker_needs_and_no_more() -> None:
    locked = {name for name, (pin, _) in pins(LOCK).items() if applies(pin)}

    assert locked == needed(project()), "run `make lock`"


def test_what_builds_it_is_locked_too() -> None:
    backend = [Requirement(line) for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]]

    assert {name for name, (pin, _) in pins(BUILD_LOCK).items() if applies(pin)} == needed(backend)


def test_the_locks_name_no_index() -> None:
    for file in (LOCK, BUILD_LOCK):
        assert "://" not in file.read_text()
        assert "--index" not in file.read_text()


def final() -> Stage:
    """The stage that is the image."""
    return stages(DEPLOY / "Dockerfile")[-1]


def test_the_image_runs_as_the_user_of_the_chart() -> None:
    assert final().named("USER") == [f"{UID}:{UID}"]


def test_the_image_runs_epp_serve() -> None:
    assert final().named("ENTRYPOINT") == ['["epp"]']
    assert final().named("CMD") == ['["serve"]']


def test_all_that_is_copied_passes_the_ignore_file() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    passed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in stages(DEPLOY / "Dockerfile")
        for text in stage.named("COPY")
        if not text.startswith("--from=")
        for source in text.split()[:-1]
    }

    assert copied == passed
    assert all((ROOT / source).exists() for source in copied)


class Built:
    """What the steps of the first stage leave, in a folder that others may read.

    Attributes:
        program: The command `epp`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tree = folder / "opt" / "epp"
        self.program = self._tree / "bin" / "epp"

    def build(self) -> None:
        """Do the steps. The Python of the tests takes the place of the base image."""
        base = self.folder / "base"
        subprocess.run([sys.executable, "-m", "venv", base], check=True, timeout=_STEP_S)
        source = self.folder / "src"
        source.mkdir()
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment["PATH"] = f"{base / 'bin'}:{os.environ['PATH']}"
        for step in stages(DEPLOY / "Dockerfile")[0].steps:
            match step.name:
                case "ENV":
                    environment |= dict(word.split("=", 1) for word in step.words)
                    environment.pop("PIP_NO_CACHE_DIR", None)  # what was downloaded before need not be again
                case "COPY":
                    *files, to = step.words
                    self._copy(files, source / to)
                case "RUN":
                    self._run(step.text, source, environment)

    def files(self) -> set[str]:
        """All files of the tree that becomes part of the image."""
        return {str(path.relative_to(self._tree)) for path in self._tree.rglob("*")}

    def _copy(self, files: Sequence[str], to: Path) -> None:
        for name in files:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, to)

    def _run(self, command: str, source: Path, environment: dict[str, str]) -> None:
        here = command.replace("/opt/epp", str(self._tree)).replace("/wheels", str(self.folder / "wheels"))
        ran = subprocess.run(
            ["sh", "-ec", here], cwd=source, env=environment, capture_output=True, text=True, timeout=_STEP_S, check=False
        )
        if ran.returncode != 0 and _NO_NETWORK.search(ran.stderr):
            do_without(f"{command}: expected to reach the package index, found: {ran.stderr.strip()[-300:]}")
        assert ran.returncode == 0, f"{here}\n{ran.stdout}\n{ran.stderr}"


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    with tempfile.TemporaryDirectory(prefix="epp-image-") as folder:
        Path(folder).chmod(0o755)
        image = Built(Path(folder))
        image.build()
        yield image


def as_in_a_pod(program: Path) -> list[str]:
    """What to put before a command so that it runs as in the pod, as far as this machine can: as the image's user, and on a
    file system that is read-only everywhere, /tmp included."""
    user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    read_only = ["unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"]
    for front in ([*read_only, *user], user, read_only):
        if shutil.which(front[0]) is None:
            continue
        if subprocess.run([*front, program, "--help"], capture_output=True, check=False, timeout=120).returncode == 0:
            return front
    return []


@asynccontextmanager
async def serving(built: Built) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, str]]]:
    """`epp serve` of the image, with the ports that it listens on."""
    process = await asyncio.create_subprocess_exec(
        *as_in_a_pod(built.program),
        *(built.program, "serve", "--endpoint=127.0.0.1:1", "--host=127.0.0.1"),
        *("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 120)).decode()
        if not line:
            raise AssertionError(f"expected epp to serve, found: {(await process.stderr.read()).decode()}")
        yield process, dict(word.split("=", 1) for word in line.split()[1:])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.flow
@pytest.mark.timeout(1800)
async def test_what_the_dockerfile_builds_serves_without_writing_anything(built: Built) -> None:
    before = built.files()
    async with serving(built) as (process, ports), aiohttp.ClientSession() as session:

        async def is_ready() -> bool:
            async with session.get(f"http://{ports['metrics']}/readyz") as response:
                return response.status == 200

        await wait_until(is_ready, "/readyz to answer 200", 120)
        async with session.get(f"http://{ports['metrics']}/") as response:
            assert response.status == 200  # the dashboard's files came along
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = (await asyncio.wait_for(process.stderr.read(), 120)).decode()
        code = await process.wait()

    assert code == 0, log
    assert "Traceback" not in log
    assert built.files() == before
    assert any(name.endswith(".pyc") for name in before)


@pytest.mark.flow
@pytest.mark.timeout(1800)
def test_the_image_holds_what_is_locked_and_the_picker(built: Built) -> None:
    packages = re.findall(r"site-packages/([^/]+?)-[^/-]+\.dist-info/METADATA$", "\n".join(built.files()), re.MULTILINE)

    assert {canonicalize_name(name) for name in packages} == {*needed(project()), "inference-epp"}
    assert "bin/pip" not in built.files()


@pytest.mark.flow
@pytest.mark.timeout(1800)
def test_the_image_says_how_to_use_it_and_what_is_missing(built: Built) -> None:
    for arguments, code, word in (
        (["--help"], 0, "serve"),
        (["serve", "--help"], 0, "--pool-name"),
        (["envoy-config"], 1, "pip install"),
    ):
        ran = subprocess.run([built.program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == code, ran.stderr
        assert word in ran.stdout + ran.stderr
