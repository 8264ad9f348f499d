"""Where the endpoint picker's time goes while it serves one kind of load: `--profile small`."""

import asyncio
import pstats
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.cases import LoadCase
from tests.bench.load import ROOT
from tests.bench.machine import BenchError, thread_cpu_s
from tests.bench.scene import Scene, Stage, start_scene
from tests.bench.table import columns

_WATCH_S = 10
_SAMPLES_PER_S = 250
_SHOWN = 25
_PRODUCT, _ENTRANCE = "(epp/", ("(epp/cli/", "(epp/__main__", "(epp/app.py")
"""Inclusive time is shown of the product's functions, without those that lead to the event loop."""


async def profile(stage: Stage, case: LoadCase) -> list[str]:
    """Lines to print: CPU of each thread, then functions by own and by inclusive time.

    `py-spy` samples from outside where there is one (beside Python or on the PATH); else `cProfile` counts every call from
    inside, which makes small functions look expensive.
    """
    py_spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    with tempfile.TemporaryDirectory(prefix="epp-profile-") as folder:
        file = Path(folder) / "profile"
        wrapper = () if py_spy else ("-m", "cProfile", "-o", str(file))
        async with start_scene(stage, case.endpoints, wrapper) as scene:
            threads = await _serve(scene, case, (py_spy, file) if py_spy else None)
        counted = read_collapsed(file.read_text()) if py_spy else read_cprofile(file)
    how = f"py-spy, {_SAMPLES_PER_S} samples/s" if py_spy else "cProfile, all calls from start to end"
    return [f"Profile of {case.name}: {how}", *threads, *_function_lines(*counted)]


async def _serve(scene: Scene, case: LoadCase, py_spy: tuple[str, Path] | None) -> list[str]:
    generator, body = scene.stage.generator, scene.stage.bodies[case.body_bytes]
    warm = await generator.run(scene.front_port, body, case.requests // 4, case.connections)
    # Enough for the whole time, with something to spare.
    requests = int(warm.requests_per_s * _WATCH_S * 1.2)
    before = thread_cpu_s(scene.epp.pid)
    sampling = None if py_spy is None else await _start_py_spy(*py_spy, scene.epp.pid)
    try:
        result = await generator.run(scene.front_port, body, requests, case.connections)
        threads = thread_cpu_s(scene.epp.pid)
        if sampling is not None and await sampling.wait():
            raise BenchError(f"py-spy: expected exit code 0, found {sampling.returncode} (may it trace other processes?)")
    finally:
        if sampling is not None and sampling.returncode is None:
            sampling.kill()
            await sampling.wait()
    used = Counter({name: used_s - before.get(name, 0.0) for name, used_s in threads.items()})
    ms_each = [(name, f"{used_s / max(result.ok, 1) * 1000:.3f} ms") for name, used_s in used.most_common() if used_s > 0]
    return ["", *columns([("thread", "CPU a request"), *ms_each])]


async def _start_py_spy(executable: str, file: Path, pid: int) -> asyncio.subprocess.Process:
    options = ["--duration", str(_WATCH_S), "--rate", str(_SAMPLES_PER_S), "--format", "raw", "--function", "--nonblocking"]
    return await asyncio.create_subprocess_exec(
        *(executable, "record", "--pid", str(pid), "--output", str(file), *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


def read_collapsed(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Own and inclusive part of all samples, by function, from lines `outermost;…;innermost COUNT`."""
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = (stack or "(nothing of Python)").split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            inclusive[frame] += int(count)
    total = max(own.total(), 1)
    return _parts(own, total), _parts(inclusive, total)


def read_cprofile(file: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The same from a file that cProfile wrote."""
    stats: Any = pstats.Stats(str(file))
    own = {_function(*key): row[2] for key, row in stats.stats.items()}
    inclusive = {_function(*key): row[3] for key, row in stats.stats.items()}
    total = max(stats.total_tt, 1e-9)
    return _parts(own, total), _parts(inclusive, total)


def _function(source: str, line: int, name: str) -> str:
    return f"{name} ({source.removeprefix(f'{ROOT}/')}:{line})"


def _parts(counts: dict[str, Any], total: float) -> dict[str, float]:
    return {name: count / total for name, count in counts.items()}


def _function_lines(own: dict[str, float], inclusive: dict[str, float]) -> Sequence[str]:
    lines: list[str] = []
    ours = {name: ratio for name, ratio in inclusive.items() if _PRODUCT in name and not any(e in name for e in _ENTRANCE)}
    for title, part in (("own", own), ("inclusive", ours)):
        top = sorted(part.items(), key=lambda item: item[1], reverse=True)[:_SHOWN]
        lines += ["", *columns([(title, "function"), *((f"{ratio:.1%}", name) for name, ratio in top)])]
    return lines
