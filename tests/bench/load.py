"""Running a load generator: `hey` where there is one, else `tests.bench.client`."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.machine import BenchError

ROOT = Path(__file__).parents[2]
_STUCK_S = 180.0
_STATUS = re.compile(r"\[(\d{3})\]\s+(\d+) responses")
_ERROR = re.compile(r"^\s+\[(\d+)\]\s+(?!\d+ responses)(.+)$", re.MULTILINE)
_PERCENTILE = re.compile(r"(\d+)%+ in ([\d.]+) secs")
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load generator saw.

    Attributes:
        ok: Answers with status 200.
        failed: Every other end of a request, by status or sentence.
        requests_per_s: Over the whole run.
        p50_ms: Median time from sending to the end of the answer; None when nothing was answered.
        p99_ms: The time that 99 of 100 do not exceed.
    """

    ok: int
    failed: dict[str, int]
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Generator:
    """Sends requests to Envoy.

    Attributes:
        hey: Where `hey` is; None takes the own client.
    """

    hey: str | None

    @classmethod
    def found(cls, wanted: str | None) -> "Generator":
        """`wanted` is `hey`, `own`, or None for `hey` if it is on the PATH."""
        path = None if wanted == "own" else shutil.which("hey")
        if wanted == "hey" and path is None:
            raise BenchError("--load: expected hey on the PATH, found none")
        return cls(path)

    @property
    def name(self) -> str:
        return "own" if self.hey is None else "hey"

    async def run(self, port: int, body: Path, requests: int, connections: int, rate: float = 0.0) -> LoadResult:
        """Send about `requests` over `connections`; `rate` bounds each connection's requests a second (0.0: no bound).

        Raises:
            BenchError: The generator failed or got stuck.
        """
        numbers = {"requests": max(requests // connections, 1) * connections, "connections": connections}
        if self.hey is None:
            flags = [f"--{name}={value}" for name, value in numbers.items()]
            own = [sys.executable, "-m", "tests.bench.client", f"--port={port}", f"--body={body}", *flags, f"--rate={rate}"]
            return parse_own(await _output(own))
        command = [self.hey, "-n", str(numbers["requests"]), "-c", str(connections), "-t", "60", "-m", "POST"]
        command += ["-T", "application/json", "-D", str(body)]
        if rate:
            command += ["-q", f"{rate:.3f}"]
        return parse_hey(await _output([*command, f"http://127.0.0.1:{port}/v1/chat/completions"]))


async def _output(command: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_STUCK_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise BenchError(f"{command[0]}: expected an end within {_STUCK_S:g} s, found none") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BenchError(f"{command[0]}: exit code {process.returncode}: {err.decode(errors='replace')[-1000:]}")
    return out.decode()


def parse_hey(output: str) -> LoadResult:
    """The summary that `hey` prints."""
    statuses = {status: int(count) for status, count in _STATUS.findall(output)}
    errors = output.partition("Error distribution:")[2]
    failed = {sentence.strip(): int(count) for count, sentence in _ERROR.findall(errors)}
    latencies_ms = {int(part): float(seconds) * 1000 for part, seconds in _PERCENTILE.findall(output)}
    rate = _RATE.search(output)
    if rate is None:
        raise BenchError(f"hey: expected a summary, found {output[-300:]!r}")
    return LoadResult(
        ok=statuses.pop("200", 0),
        failed=statuses | failed,
        requests_per_s=float(rate[1]),
        p50_ms=latencies_ms.get(50),
        p99_ms=latencies_ms.get(99),
    )


def parse_own(output: str) -> LoadResult:
    """The JSON object that `tests.bench.client` prints."""
    result = json.loads(output)
    statuses: dict[str, int] = result["statuses"]
    latencies_s: list[float] = result["latencies_s"]
    return LoadResult(
        ok=statuses.pop("200", 0),
        failed=statuses,
        requests_per_s=result["requests_per_s"],
        p50_ms=percentile(latencies_s, 50) * 1000 if latencies_s else None,
        p99_ms=percentile(latencies_s, 99) * 1000 if latencies_s else None,
    )


def percentile(ascending: Sequence[float], part: float) -> float:
    """The least of `ascending` (not empty) that `part` percent of them do not exceed (nearest rank)."""
    rank = -(-len(ascending) * part // 100)
    return ascending[max(int(rank), 1) - 1]
