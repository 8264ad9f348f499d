"""The model servers of the demo, and the endpoints file that tells the picker of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

MODEL = "demo-model"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """One simulated model server.

    Attributes:
        slots: Requests in execution at once.
        decode_rate: Answer tokens a second of one request.
        weight: Its capacity beside the others, for the endpoints file.
    """

    name: str
    engine: str
    slots: int
    decode_rate: int
    weight: float = 1.0


FLEET = (
    ServerPlan(name="vllm-a", engine="vllm", slots=16, decode_rate=100),
    ServerPlan(name="vllm-b", engine="vllm", slots=16, decode_rate=100),
    ServerPlan(name="sglang", engine="sglang", slots=16, decode_rate=100),
    ServerPlan(name="trtllm", engine="trtllm-serve", slots=16, decode_rate=100),
    ServerPlan(name="llamacpp", engine="llamacpp", slots=8, decode_rate=60, weight=0.5),
    ServerPlan(name="ollama", engine="ollama", slots=8, decode_rate=60, weight=0.5),
)
DRAINED = "vllm-a"
"""A vLLM with its default settings: at SIGTERM it answers 500 to all that runs on it, so only a drain saves its requests."""

_STREAM_INTERVAL = "50ms"


def sim_arguments(plan: ServerPlan, *, port: int, seed: int) -> list[str]:
    """The arguments of `epp` for this server; port 0 takes a free one."""
    return [
        *("sim", "--engine", plan.engine, "--name", plan.name, "--host", HOST, "--port", str(port)),
        *("--slots", str(plan.slots), "--decode-rate", str(plan.decode_rate), "--served-model-name", MODEL),
        *("--stream-interval", _STREAM_INTERVAL, "--seed", str(seed)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One server in the endpoints file. Its engine is not in there: the picker finds it out."""

    name: str
    port: int
    weight: float
    draining: bool = False


def endpoints_text(entries: Iterable[FileEntry]) -> str:
    """The endpoints file."""
    endpoints = []
    for entry in entries:
        endpoint: dict[str, object] = {"name": entry.name, "address": HOST, "port": entry.port, "weight": entry.weight}
        if entry.draining:
            endpoint["draining"] = True
        endpoints.append(endpoint)
    return yaml.safe_dump({"endpoints": endpoints}, sort_keys=False)


def replace_file(file: Path, text: str) -> None:
    """Write the file in one step: a reader sees the old text or the new one, never a part."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
