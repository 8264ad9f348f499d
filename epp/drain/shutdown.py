"""What each engine does when it is told to end: facts, each with where it is from. No input or output here.

`read` means that the engine's own source or documentation says so; `seen` that a real server was watched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class AtSigterm(Enum):
    """What SIGTERM does to requests that run or wait, without any flag."""

    LOST = "lost"
    """They are cut or never answered."""
    FINISHED_UNTIL = "finished until a deadline"
    FINISHED = "finished"
    """However long they take; only the kubelet's SIGKILL ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineFlag:
    """The engine's own setting for how long running requests may go on after SIGTERM, in whole seconds.

    Attributes:
        name: The flag's name, such as `--shutdown-timeout`.
        default_s: What holds without it; 0 is: not at all.
        variable: Environment variable that carries the flag where the container's arguments are not the engine's.
        waits_for_connections: Whether the whole time goes by while a client keeps an idle connection open.
    """

    name: str
    default_s: float
    variable: str | None = None
    waits_for_connections: bool = False

    def written(self, seconds: int) -> str:
        """The setting as it stands on a command line."""
        return f"{self.name}={seconds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShutdown:
    """One engine at its end.

    Attributes:
        name: As in the catalog of engines (`epp.scrape.catalog`).
        title: As its makers write it.
        port: Where the API listens when nothing else is said.
        metrics_port: Where the metrics are when not on `port`.
        at_sigterm: What SIGTERM does to requests that are there.
        running: The same, in one sentence, with the engine's own names and times.
        arriving: What a request meets that comes after SIGTERM, in one sentence.
        deadline: The flag that changes it; None where there is none.
        end_s: From SIGTERM to the end of an idle process, in seconds.
        end_seen: Whether `end_s` was measured; else it is an estimate from the source.
        look_s: How often the engine looks, after SIGTERM, whether it is idle, in seconds; 0 is always.
        page_lag_s: How long the metrics page may go on showing an earlier, idle state, in seconds. Idle samples have to span
            more than this.
        page_freezes: Whether the page may go on showing idle for as long as one request takes, so that it proves nothing.
        has_load: Whether the server tells its load at all.
        metrics_flags: What has to be said at the start for there to be a page with load.
        tools: What the image of its makers has of `curl`, `wget`, `python3`, `bash` and `awk`.
        sources: Where all this is from.
    """

    name: str
    title: str
    port: int
    metrics_port: int | None = None
    at_sigterm: AtSigterm
    running: str
    arriving: str
    deadline: DeadlineFlag | None = None
    end_s: float
    end_seen: bool = False
    look_s: float = 0.0
    page_lag_s: float = 0.0
    page_freezes: bool = False
    has_load: bool = True
    metrics_flags: tuple[str, ...] = ()
    tools: tuple[str, ...]
    sources: tuple[str, ...]


VLLM = EngineShutdown(
    name="vllm",
    title="vLLM",
    port=8000,
    at_sigterm=AtSigterm.LOST,
    running="are aborted, or hang until their clients give up (both seen, with the default --shutdown-timeout of 0)",
    arriving="is refused; with --shutdown-timeout it is answered 500 within 10 ms while /health still says 200",
    deadline=DeadlineFlag(name="--shutdown-timeout", default_s=0.0),
    end_s=20.0,
    end_seen=True,
    page_lag_s=0.0,
    tools=("curl", "python3", "bash", "awk"),
    sources=(
        "seen: vLLM 0.32.0 on CPU, idle: 17 to 20 s from SIGTERM to exit",
        "read: vllm-project/vllm vllm/entrypoints/launcher.py, vllm/v1/engine/core.py (_reject_add_in_shutdown)",
        "read: vllm-project/vllm docker/Dockerfile (curl, python3 on Ubuntu)",
    ),
)

SGLANG = EngineShutdown(
    name="sglang",
    title="SGLang",
    port=30000,
    at_sigterm=AtSigterm.FINISHED,
    running="finish without a deadline; they are cut if a health probe has failed before, or with SGL_FORCE_SHUTDOWN",
    arriving="is still accepted and served, so a server that gets requests does not end by itself",
    end_s=20.0,
    look_s=5.0,
    page_lag_s=3.0,
    metrics_flags=("--enable-metrics",),
    tools=("curl", "wget", "python3", "bash", "awk"),
    sources=(
        "read: sgl-project/sglang python/sglang/srt/managers/tokenizer_manager.py (sigterm_watchdog: 5 s, then up to 15 s)",
        "read: sgl-project/sglang python/sglang/srt/server_args.py (decode-log-interval 40: gauges lag 1 to 3 s)",
        "read: sgl-project/sglang docker/Dockerfile",
    ),
)

TRTLLM_SERVE = EngineShutdown(
    name="trtllm-serve",
    title="TensorRT-LLM (trtllm-serve)",
    port=8000,
    at_sigterm=AtSigterm.FINISHED,
    running="finish without a deadline (uvicorn)",
    arriving="is refused",
    end_s=15.0,
    page_lag_s=0.0,
    page_freezes=True,
    metrics_flags=("return_perf_metrics: true in --extra_llm_api_options",),
    tools=("wget", "python3", "bash", "awk"),
    sources=(
        "read: NVIDIA/TensorRT-LLM tensorrt_llm/serve/openai_server.py (gauges move when a request completes)",
        "read: encode/uvicorn uvicorn/server.py; NVIDIA/TensorRT-LLM trtllm-serve wrapper (child: terminate, 10 s, kill)",
        "read: NVIDIA/TensorRT-LLM docker/common/install_base.sh (wget, python3 on Ubuntu)",
    ),
)

TRITON = EngineShutdown(
    name="triton-tensorrt-llm",
    title="Triton with TensorRT-LLM",
    port=8000,
    metrics_port=8002,
    at_sigterm=AtSigterm.FINISHED_UNTIL,
    running="finish within --exit-timeout-secs (30 s by default)",
    arriving="is refused on a new connection, and served on one that was kept open",
    deadline=DeadlineFlag(name="--exit-timeout-secs", default_s=30.0, waits_for_connections=True),
    end_s=5.0,
    page_lag_s=0.1,
    tools=("curl", "python3", "bash", "awk"),
    sources=(
        "read: triton-inference-server/server src/http_server.cc (Stop), src/triton_signal.cc, pull request 6986",
        "read: triton-inference-server/server src/command_line_parser.cc (exit-timeout-secs 30)",
        "read: triton-inference-server/server build.py (python3, curl on Ubuntu)",
    ),
)

LLAMACPP = EngineShutdown(
    name="llamacpp",
    title="llama.cpp",
    port=8080,
    at_sigterm=AtSigterm.LOST,
    running="never get another byte; they are cut after 30 s, and those that wait hang until their clients give up",
    arriving="is refused at once",
    end_s=5.0,
    metrics_flags=("--metrics",),
    tools=("curl", "bash", "awk"),
    sources=(
        (
            "seen: llama-server on CPU: running requests never get an answer, new connections are refused at once; idle, "
            "it ends within 1 s"
        ),
        "read: ggml-org/llama.cpp tools/server/server.cpp (shutdown_handler)",
        "read: ggml-org/llama.cpp .devops/cuda.Dockerfile, target server (curl on Ubuntu, no Python)",
    ),
)

TGI = EngineShutdown(
    name="tgi",
    title="text-generation-inference",
    port=3000,
    at_sigterm=AtSigterm.FINISHED_UNTIL,
    running="finish within --graceful-termination-timeout (90 s by default), then the launcher kills the router",
    arriving="is refused",
    deadline=DeadlineFlag(name="--graceful-termination-timeout", default_s=90.0),
    end_s=10.0,
    tools=("curl", "bash", "awk"),
    sources=(
        "read: huggingface/text-generation-inference launcher/src/main.rs (graceful_termination_timeout), router/src/server.rs",
        "read: huggingface/text-generation-inference Dockerfile (curl on Ubuntu; the image sets PORT=80)",
    ),
)

OLLAMA = EngineShutdown(
    name="ollama",
    title="Ollama",
    port=11434,
    at_sigterm=AtSigterm.LOST,
    running="are cut at once: every connection is closed",
    arriving="is refused",
    end_s=5.0,
    has_load=False,
    tools=("bash", "awk"),
    sources=(
        "read: ollama/ollama server/routes.go (Serve: srvr.Close on SIGTERM)",
        "read: ollama/ollama Dockerfile (Ubuntu with ca-certificates alone), issue 9781 (no curl)",
    ),
)

LMDEPLOY = EngineShutdown(
    name="lmdeploy",
    title="LMDeploy",
    port=23333,
    at_sigterm=AtSigterm.FINISHED,
    running="finish without a deadline (uvicorn)",
    arriving="is refused",
    end_s=10.0,
    page_lag_s=10.0,
    tools=("wget", "python3", "bash", "awk"),
    sources=(
        "read: InternLM/lmdeploy lmdeploy/serve/openai/api_server.py (log_interval = 10), encode/uvicorn uvicorn/server.py",
        "read: InternLM/lmdeploy docker/Dockerfile (wget, python3 on Ubuntu)",
    ),
)

NIM = EngineShutdown(
    name="nim",
    title="NVIDIA NIM for LLMs",
    port=8000,
    at_sigterm=AtSigterm.LOST,
    running="are taken to be lost, as in the vLLM inside; its makers do not say",
    arriving="is refused, or with --shutdown-timeout answered 500",
    deadline=DeadlineFlag(name="--shutdown-timeout", default_s=0.0, variable="NIM_PASSTHROUGH_ARGS"),
    end_s=25.0,
    tools=("python3", "bash"),
    sources=(
        "read: docs.nvidia.com/nim/large-language-models: Architecture (a proxy and vLLM, or SGLang), Environment Variables",
        "an estimate: vLLM's end and 5 s for the proxy before it; python3 and bash",
    ),
)

ENGINES: Mapping[str, EngineShutdown] = {
    each.name: each for each in (VLLM, SGLANG, TRTLLM_SERVE, TRITON, LLAMACPP, TGI, OLLAMA, LMDEPLOY, NIM)
}
"""By name."""
