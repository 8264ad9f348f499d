"""Views of engines in a chosen state, and metrics pages read back by an independent parser."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from epp.sim.config import SimConfig
from epp.sim.engine_model import EngineModel
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import Engine, ServerStatus, View
from epp.sim.engines.catalog import make_engine
from epp.sim.http_counters import HttpCounters
from epp.sim.job import Job, JobPhase
from epp.sim.limits import EngineLimits

WALL_S = 1_787_460_000.0


class Bench:
    """An engine's pages over a model that a test drives."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.engine: Engine = make_engine(config)
        limits = EngineLimits(
            slots=config.slots,
            max_queue_requests=config.max_queue_requests,
            prefill_tokens_per_s=config.prefill_tokens_per_s,
            decode_tokens_per_s=config.decode_tokens_per_s,
            kv_blocks=config.kv_blocks - self.engine.traits.reserved_blocks,
            kv_block_tokens=config.kv_block_tokens,
            max_lora=config.max_lora,
        )
        self.model = EngineModel(limits)
        self.now_s = 0.0
        self.http = HttpCounters()

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.model.submit(job, self.now_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for job in self.model.advance(self.now_s):
            if job.phase is JobPhase.FINISHED:
                self.engine.observe(job.times())
        if self.engine.watches:
            self.engine.note(self.state(), WALL_S + self.now_s)

    def state(self) -> EngineState:
        return self.model.state(self.now_s)

    def view(self, query: Mapping[str, str] | None = None, status: ServerStatus = ServerStatus.READY) -> View:
        state = self.state()
        return View(
            status=status,
            gauges=state,
            live=state,
            gauges_at_wall_s=WALL_S + self.now_s,
            wall_s=WALL_S + self.now_s,
            started_wall_s=WALL_S,
            http=self.http,
            query=query or {},
        )

    def samples(self) -> "Samples":
        return Samples(self.engine.metrics(self.view()).body.decode())


class Samples:
    """Every sample of a page."""

    def __init__(self, page: str) -> None:
        self.all = [sample for family in text_string_to_metric_families(page) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample of this name that has these labels."""
        found = [
            sample.value
            for sample in self.all
            if sample.name == name and all(sample.labels.get(label) == value for label, value in labels.items())
        ]
        assert len(found) == 1, f"{name} {labels}: expected one sample, found {len(found)}"
        return found[0]

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of every sample of this name."""
        return [sample.labels for sample in self.all if sample.name == name]

    def names(self) -> set[str]:
        """All names."""
        return {sample.name for sample in self.all}


def busy_bench(engine: str, *, old_metric_names: bool = False) -> Bench:
    """Two of six jobs finished, three run (one still in prefill), one waits; a prefix was found again."""
    config = SimConfig(
        engine=engine,
        slots=3,
        kv_blocks=64,
        kv_block_tokens=16,
        prefill_tokens_per_s=1000,
        decode_tokens_per_s=10,
        served_model_names=("m/one",),
        old_metric_names=old_metric_names,
    )
    bench = Bench(config)
    prefix = (1, 2, 3, 4, 5)
    bench.submit(Job(prompt_tokens=100, output_tokens=5, hashes=prefix, length_limited=True))
    bench.pass_time(1.0)
    bench.submit(Job(prompt_tokens=90, output_tokens=3, hashes=prefix))
    bench.pass_time(1.0)
    bench.submit(
        Job(prompt_tokens=100, output_tokens=50, hashes=(11, 12)),
        Job(prompt_tokens=200, output_tokens=50, hashes=(21, 22)),
    )
    bench.pass_time(1.0)
    bench.submit(Job(prompt_tokens=300, output_tokens=50), Job(prompt_tokens=40, output_tokens=50))
    bench.pass_time(0.1)
    return bench
