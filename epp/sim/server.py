"""A simulated model server: an engine model behind HTTP, with the manners of one engine."""

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import hdrs, web

from epp.clock import Clock, SystemClock
from epp.sim.assembly import Assembler
from epp.sim.config import SimConfig
from epp.sim.driver import EngineDriver
from epp.sim.engine_model import EngineModel
from epp.sim.engines.base import Page, Reply, ServerStatus, View, WhileLoading, json_reply
from epp.sim.engines.catalog import make_engine
from epp.sim.faults import Faults
from epp.sim.front import Front
from epp.sim.http_counters import HttpCounters
from epp.sim.inference import Inference, respond
from epp.sim.job import Job, JobPhase
from epp.sim.limits import EngineLimits
from epp.sim.metrics_source import MetricsSource
from epp.sim.termination import Termination


class SimServer:
    """One simulated model server, as an async context manager.

    Inside the context it is bound (see `url`); the model is loaded once `ready` is set. SIGTERM is `terminate()`, after
    which `terminated` is set when the process of the real server would exit. Leaving the context ends everything at once.

    Attributes:
        config: What it is like.
        faults: Switches for tests.
        ready: Set when the model is loaded.
        terminated: Set when a stop has come to its end.
        exit_code: What the process should exit with.
        requests_received: Inference requests that came, in whatever way they ended.
    """

    def __init__(self, config: SimConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or SimConfig()
        self.faults = Faults()
        self.ready = asyncio.Event()
        self.terminated = asyncio.Event()
        self.exit_code = 0
        self.requests_received = 0
        clock = clock or SystemClock()
        self._clock = clock
        self._status = ServerStatus.LOADING
        self._engine = make_engine(self.config)
        self._model = EngineModel(_limits(self.config, self._engine.traits.reserved_blocks))
        self._driver = EngineDriver(
            self._model, clock, stream_interval_s=self.config.stream_interval_s, on_change=self._changed
        )
        self._http = HttpCounters()
        self._metrics = MetricsSource(
            config=self.config,
            engine=self._engine,
            driver=self._driver,
            faults=self.faults,
            http=self._http,
            clock=clock,
            status=lambda: self._status,
        )
        assembler = Assembler(
            self.config,
            checks_model=self._engine.traits.checks_model,
            context_tokens=self._model.limits.kv_blocks * self._model.limits.kv_block_tokens,
        )
        self._inference = Inference(
            engine=self._engine, driver=self._driver, assembler=assembler, clock=clock, name=lambda: self.name
        )
        self._pages: dict[str, Page] = {**self._engine.pages(), "/v1/models": self._models}
        own_path = self.config.metrics_path
        self._metrics_paths = frozenset((own_path,) if own_path else self._engine.traits.metrics_paths)
        self._front: Front | None = None
        self._open_requests = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._termination: Termination | None = None

    @property
    def front(self) -> Front:
        """Listeners and connections; there only inside the context."""
        assert self._front is not None, "expected to be inside `async with`"
        return self._front

    @property
    def name(self) -> str:
        """What `x-sim-name` says."""
        return self.config.name or f"{self.config.engine}-{self.front.api.port}"

    @property
    def address(self) -> str:
        """`host:port`."""
        return self.front.api.address

    @property
    def url(self) -> str:
        """Where the API is, without a final slash."""
        return f"http://{self.address}"

    @property
    def metrics_address(self) -> str:
        """`host:port` of the metrics page."""
        return self.address if self.front.metrics is None else self.front.metrics.address

    @property
    def metrics_hits(self) -> int:
        """Requests for the metrics page."""
        return self._metrics.hits

    @property
    def requests_served(self) -> int:
        """Inference requests answered in full."""
        return self._inference.completed_requests

    @property
    def running_requests(self) -> int:
        """Sequences in execution now."""
        return self._driver.state().running_requests

    @property
    def waiting_requests(self) -> int:
        """Sequences in the queue now."""
        return self._driver.state().waiting_requests

    async def __aenter__(self) -> Self:
        self._front = Front(self._handle)
        self._front.bind(self.config.host, self.config.port, self.config.metrics_port)
        await self._open()
        self._tasks.append(asyncio.create_task(self._metrics.gauges.run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.front.end()
        self._driver.close()

    async def _open(self) -> None:
        """Open the listeners in the engine's manner; loading, if it takes time, goes on by itself."""
        traits = self._engine.traits
        if self.config.startup_delay_s == 0 or traits.loads_at_first_request:
            await self.front.serve()
            self._loaded()
            return
        if traits.while_loading is WhileLoading.ANSWERED:
            await self.front.serve()
        elif traits.while_loading is WhileLoading.SILENT:
            self.front.listen_silently()
        self._tasks.append(asyncio.create_task(self._load()))

    async def _load(self) -> None:
        await asyncio.sleep(self.config.startup_delay_s)
        if self._status is not ServerStatus.LOADING:
            return
        if self._engine.traits.while_loading is not WhileLoading.ANSWERED:
            await self.front.serve()
        self._loaded()

    def _loaded(self) -> None:
        self._status = ServerStatus.READY
        self.ready.set()

    def terminate(self) -> None:
        """What SIGTERM does; a second one too."""
        if self._termination is not None:
            if self._termination.style.second_signal_exits:
                self.exit_code = 1
                self.terminated.set()
            return
        self._termination = Termination(self, self._engine.stop_style())
        loading, self._status = self._status is ServerStatus.LOADING, ServerStatus.STOPPING
        if loading:
            self.terminated.set()
        else:
            self._tasks.append(asyncio.create_task(self._terminate(self._termination)))

    async def _terminate(self, termination: Termination) -> None:
        await termination.run()
        self.terminated.set()

    def close_listeners(self) -> None:
        """Refuse new connections; those that are there stay."""
        self.front.close_listeners()

    async def reopen_listeners(self) -> None:
        """Take connections again, on the same ports."""
        await self.front.reopen_listeners()

    def close_kept_connections(self) -> None:
        """Close idle connections now and the others after their answer."""
        self.front.close_kept_connections()

    def cut_connections(self) -> None:
        """Close every connection in the middle of what it does."""
        self.front.cut_connections()

    def abort_requests(self) -> None:
        """Answer 500 to everything that runs or waits."""
        self._driver.abort_all()

    def freeze(self) -> None:
        """Let nothing get another token."""
        self._driver.freeze()

    def open_requests(self) -> int:
        """Inference requests that are not answered yet."""
        return self._open_requests

    def open_connections(self) -> int:
        """Connections, idle ones among them."""
        return self.front.open_connections

    def freeze_metrics(self) -> None:
        """From now on the metrics page stays as it is."""
        self._metrics.freeze()

    def thaw_metrics(self) -> None:
        """Let the metrics page change again."""
        self._metrics.thaw()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        counted = self._http.begin(request.path, request.method)
        status: int | None = None
        try:
            response = await self._route(request)
            status = response.status
        finally:
            self._http.end(counted, status)
        if not response.prepared:
            response.headers["x-sim-name"] = self.name
        return response

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if self._status is ServerStatus.LOADING:
            return respond(self._engine.loading_reply(path))
        if request.method == hdrs.METH_POST and path in self._inference.routes:
            return await self._infer(request)
        if request.method not in {hdrs.METH_GET, hdrs.METH_HEAD}:
            await request.read()
            return respond(self._engine.not_found())
        if path in self._metrics_paths and self.front.is_metrics_port(request):
            return respond(await self._metrics.reply(request.query))
        page = self._pages.get(path)
        reply = self._engine.not_found() if page is None else page(self._metrics.view(request.query))
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        return respond(reply)

    async def _infer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests_received += 1
        self._open_requests += 1
        try:
            if self.faults.never_answer:
                await asyncio.Event().wait()
            status = self.faults.answer_status
            if status is None and self._termination is not None and self._termination.style.new_requests_fail:
                status = 500
            if status is None:
                return await self._inference.answer(request)
            await request.read()
            return respond(self._engine.error(status, "Internal server error", "InternalServerError"))
        finally:
            self._open_requests -= 1

    def _models(self, view: View) -> Reply:
        return json_reply({"object": "list", "data": self._engine.models(int(view.started_wall_s))})

    def _changed(self, touched: list[Job]) -> None:
        finished = [job for job in touched if job.phase is JobPhase.FINISHED]
        for job in finished:
            self._engine.observe(job.times())
        if self._engine.watches:
            self._engine.note(self._model.state(self._clock.monotonic_s()), self._clock.wall_s())
        idle = not self._model.running_requests
        self._metrics.gauges.after_change(prefilled=len(finished) < len(touched), finished=bool(finished), idle=idle)


def _limits(config: SimConfig, reserved_blocks: int) -> EngineLimits:
    return EngineLimits(
        slots=config.slots,
        max_queue_requests=config.max_queue_requests,
        prefill_tokens_per_s=config.prefill_tokens_per_s,
        decode_tokens_per_s=config.decode_tokens_per_s,
        kv_blocks=config.kv_blocks - reserved_blocks,
        kv_block_tokens=config.kv_block_tokens,
        max_lora=config.max_lora,
    )
