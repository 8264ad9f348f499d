"""Every engine by name."""

from epp.sim.config import SimConfig
from epp.sim.engines.base import Engine
from epp.sim.engines.llamacpp import Llamacpp
from epp.sim.engines.lmdeploy import Lmdeploy
from epp.sim.engines.nim import Nim
from epp.sim.engines.ollama import Ollama
from epp.sim.engines.sglang import Sglang
from epp.sim.engines.tgi import Tgi
from epp.sim.engines.triton import Triton
from epp.sim.engines.trtllm import Trtllm
from epp.sim.engines.vllm import Vllm

_ENGINES: dict[str, type[Engine]] = {
    engine.traits.name: engine for engine in (Vllm, Sglang, Trtllm, Triton, Llamacpp, Tgi, Ollama, Lmdeploy, Nim)
}


def make_engine(config: SimConfig) -> Engine:
    """The engine that `config` names; `SimConfig` has checked the name."""
    return _ENGINES[config.engine](config)
