"""Puts an engine model on an event loop: one timer for its next event, one tick for all streams."""

import asyncio
from collections.abc import Callable, Iterable

from epp.clock import Clock
from epp.sim.engine_model import EngineModel
from epp.sim.engine_state import EngineState
from epp.sim.job import Job, JobPhase

SHORTEST_TIMER_S = 0.0005
"""uvloop counts in milliseconds and may wake a little early; a shorter pause would only spin."""


class AbortedError(Exception):
    """The server gives the request up."""


class Generation:
    """The jobs of one HTTP request, and what its handler waits for."""

    def __init__(self, jobs: Iterable[Job], *, streaming: bool) -> None:
        self.jobs = tuple(jobs)
        self.streaming = streaming
        self._changed = asyncio.Event()
        self._aborted = False

    @property
    def finished(self) -> bool:
        """Whether every answer is complete."""
        return all(job.phase is JobPhase.FINISHED for job in self.jobs)

    async def change(self) -> None:
        """Wait until there is something to send.

        Raises:
            AbortedError: The server gave the request up.
        """
        await self._changed.wait()
        self._changed.clear()
        if self._aborted:
            raise AbortedError

    def notify(self) -> None:
        """There is something to send."""
        self._changed.set()

    def abort(self) -> None:
        """Make `change` raise."""
        self._aborted = True
        self._changed.set()


class EngineDriver:
    """Lets time pass for an engine model.

    Args:
        model: Driven by this object only.
        clock: Its time.
        stream_interval_s: How often streams are told of new tokens.
        on_change: Called with the jobs that got their first token or finished, after the model has moved on.
    """

    def __init__(
        self,
        model: EngineModel,
        clock: Clock,
        *,
        stream_interval_s: float,
        on_change: Callable[[list[Job]], None],
    ) -> None:
        self._model = model
        self._clock = clock
        self._stream_interval_s = stream_interval_s
        self._on_change = on_change
        self._generations: dict[Job, Generation] = {}
        self._streams: set[Generation] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._frozen = False

    @property
    def open_generations(self) -> int:
        """Requests that have not got all of their answer."""
        return len(set(self._generations.values()))

    def submit(self, jobs: Iterable[Job], *, streaming: bool) -> Generation:
        """Take in the jobs of one request, all or none.

        Raises:
            QueueFullError: There is no room for one of them.
            ContextLengthError: One of them is too long.
        """
        generation = Generation(jobs, streaming=streaming)
        now_s = self._clock.monotonic_s()
        try:
            for job in generation.jobs:
                self._model.submit(job, now_s)
        except Exception:
            for job in generation.jobs:
                self._model.cancel(job, now_s)
            raise
        for job in generation.jobs:
            self._generations[job] = generation
        if streaming:
            self._streams.add(generation)
            if self._tick is None:
                self._schedule_tick()
        self._run()
        return generation

    def forget(self, generation: Generation) -> None:
        """End a request's part in the engine; jobs that still run are cancelled."""
        for job in generation.jobs:
            self._generations.pop(job, None)
            if not self._frozen:
                self._model.cancel(job, self._clock.monotonic_s())
        self._streams.discard(generation)
        self._run()

    def ready_tokens(self, job: Job) -> int:
        """Answer tokens of `job` that can be sent."""
        return self._model.ready_tokens(job, self._clock.monotonic_s())

    def state(self) -> EngineState:
        """The engine as it is now."""
        self._run()
        return self._model.state(self._clock.monotonic_s())

    def batch_end_in_s(self, batch_tokens: int) -> float:
        """How long the prompt batches being computed now will take."""
        now_s = self._clock.monotonic_s()
        return self._model.batch_end_s(now_s, batch_tokens) - now_s

    def abort_all(self) -> None:
        """Give every request up."""
        for generation in set(self._generations.values()):
            generation.abort()

    def freeze(self) -> None:
        """Stop: nothing gets another token."""
        self._frozen = True
        self.close()

    def close(self) -> None:
        """Stop the timers."""
        for handle in (self._timer, self._tick):
            if handle is not None:
                handle.cancel()
        self._timer = self._tick = None

    def _run(self) -> None:
        """Let the model catch up with the clock, tell who waits, and set the timer for the next event."""
        if self._frozen:
            return
        now_s = self._clock.monotonic_s()
        touched = self._model.advance(now_s)
        for job in touched:
            generation = self._generations.get(job)
            if generation is not None and (generation.streaming or generation.finished):
                generation.notify()
        if touched:
            self._on_change(touched)
        self._schedule(now_s)

    def _schedule(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_s = self._model.next_event_at_s()
        if at_s is not None:
            delay_s = max(at_s - now_s, SHORTEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)

    def _schedule_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(self._stream_interval_s, self._tick_streams)

    def _tick_streams(self) -> None:
        self._tick = None
        for generation in self._streams:
            if any(job.phase is JobPhase.DECODE for job in generation.jobs):
                generation.notify()
        if self._streams:
            self._schedule_tick()
