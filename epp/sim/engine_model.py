"""An inference engine without I/O and without a clock: slots, queue, prefill, decode, KV blocks.

Time is what the caller says. Everything between two calls happens at its exact moment, in order, so the result does not
depend on how often `advance` is called. The rules, in short:

* A job waits until a slot is free and its prompt fits into free KV blocks. First come, first served; only a job whose
  LoRA adapter would be one too many is passed over.
* The prefill takes (prompt tokens not in the cache) / prefill rate; each job at full speed, as if batches were free.
* The first token is ready at the end of the prefill, the others at the decode rate.
* A job that needs a block when none is free makes the one that started last lose its blocks (vLLM's preemption by
  recomputation): that job goes to the head of the queue, keeps its tokens, and prefills prompt and tokens again.
"""

import heapq
from collections import deque
from enum import IntEnum
from itertools import count

from epp.sim.blocks import BlockPool
from epp.sim.engine_state import EngineCounters, EngineState, SlotState
from epp.sim.job import Job, JobPhase
from epp.sim.limits import ContextLengthError, EngineLimits, QueueFullError


class _Event(IntEnum):
    FIRST_TOKEN = 0
    GROW = 1
    FINISH = 2


class EngineModel:
    """The engine. Times given to its methods must not go back."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.counters = EngineCounters()
        self._pool = BlockPool(limits.kv_blocks)
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._free_slots = list(range(limits.slots))
        self._events: list[tuple[float, int, _Event, Job, int]] = []
        self._order = count()
        self._touched: dict[Job, None] = {}
        self._accounted_to_s = 0.0

    @property
    def running_requests(self) -> int:
        return len(self._running)

    @property
    def waiting_requests(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Held part of the KV blocks, from 0.0 to 1.0."""
        return self._pool.used_blocks / self._pool.total_blocks

    def next_event_at_s(self) -> float | None:
        """When `advance` will next have something to do, or None while nothing runs."""
        while self._events and self._events[0][4] != self._events[0][3].run:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def submit(self, job: Job, now_s: float) -> None:
        """Take a job in; it starts at once if it can.

        Raises:
            QueueFullError: It would have to wait and the queue is full.
            ContextLengthError: It is larger than the whole KV cache.
        """
        limit_tokens = self.limits.kv_blocks * self.limits.kv_block_tokens
        if job.prompt_tokens + job.output_tokens > limit_tokens:
            raise ContextLengthError(job.prompt_tokens + job.output_tokens, limit_tokens)
        self._advance(now_s)
        job.submitted_at_s = now_s
        job.phase = JobPhase.WAITING
        self._waiting.append(job)
        self._start_waiting(now_s)
        bound = self.limits.max_queue_requests
        if bound is not None and job.phase is JobPhase.WAITING and len(self._waiting) > bound:
            self._waiting.remove(job)
            job.phase = JobPhase.CANCELLED
            self.counters.rejected_requests += 1
            raise QueueFullError
        self.counters.submitted_requests += 1

    def advance(self, now_s: float) -> list[Job]:
        """Let everything up to `now_s` happen; the jobs that got their first token or finished since, each once."""
        self._advance(now_s)
        touched, self._touched = self._touched, {}
        return list(touched)

    def cancel(self, job: Job, now_s: float) -> None:
        """Take a job out, as when its client left; a finished one is left alone."""
        self._advance(now_s)
        if job.phase is JobPhase.WAITING:
            self._waiting.remove(job)
        elif job.phase in {JobPhase.PREFILL, JobPhase.DECODE}:
            job.kept_tokens = job.ready_tokens(now_s, self.limits.decode_tokens_per_s)
            self._stop(job)
        else:
            return
        self.counters.generated_tokens += job.kept_tokens
        self.counters.aborted_requests += 1
        job.phase = JobPhase.CANCELLED
        self._start_waiting(now_s)

    def ready_tokens(self, job: Job, now_s: float) -> int:
        """Answer tokens of `job` that are ready."""
        return job.ready_tokens(now_s, self.limits.decode_tokens_per_s)

    def batch_end_s(self, now_s: float, batch_tokens: int) -> float:
        """When the prompt batches of `batch_tokens` being computed now are done; `now_s` when none is."""
        batch_s = batch_tokens / self.limits.prefill_tokens_per_s
        ends = [now_s]
        for job in self._running:
            if job.phase is JobPhase.PREFILL:
                start_s = job.decode_from_s - job.uncached_tokens / self.limits.prefill_tokens_per_s
                ends.append(min(job.decode_from_s, start_s + batch_s * (1 + int((now_s - start_s) / batch_s))))
        return max(ends)

    def _advance(self, now_s: float) -> None:
        while True:
            at_s = self.next_event_at_s()
            if at_s is None or at_s > now_s:
                break
            _, _, event, job, _ = heapq.heappop(self._events)
            self._account(at_s)
            if event is _Event.FIRST_TOKEN:
                self._first_token(job, at_s)
            elif event is _Event.GROW:
                self._grow(job, at_s)
            else:
                self._finish(job, at_s)
        self._account(now_s)

    def _account(self, now_s: float) -> None:
        """Add the time since the last change to the counters of busy time."""
        passed_s = now_s - self._accounted_to_s
        if self._running and passed_s > 0:
            self.counters.busy_s += passed_s
            self.counters.slot_busy_s += passed_s * len(self._running)
        self._accounted_to_s = now_s

    def _start_waiting(self, now_s: float) -> None:
        while self._free_slots:
            job = self._next_startable()
            if job is None or not self._try_start(job, now_s):
                return

    def _next_startable(self) -> Job | None:
        loaded = {job.lora for job in self._running if job.lora is not None}
        for job in self._waiting:
            if job.lora is None or job.lora in loaded or len(loaded) < self.limits.max_lora:
                return job
        return None

    def _try_start(self, job: Job, now_s: float) -> bool:
        """Give `job` a slot and blocks, unless there are too few blocks."""
        tokens = job.prompt_tokens + job.kept_tokens
        block_tokens = self.limits.kv_block_tokens
        # The last token is always computed, since its output is what the first new token is made of.
        reusable = job.hashes[: (tokens - 1) // block_tokens]
        cached = reusable[: self._pool.match(reusable)]
        new_blocks = -(-tokens // block_tokens) - len(cached)
        if not self._pool.fits(cached, new_blocks):
            return False
        self._pool.hold(cached)
        self._pool.take(new_blocks)
        job.held_hashes, job.held_plain = list(cached), new_blocks
        job.uncached_tokens = tokens - len(cached) * block_tokens
        self.counters.looked_up_blocks += len(reusable)
        self.counters.reused_blocks += len(cached)
        if job.started_at_s is None:
            job.started_at_s = now_s
            job.cached_tokens = len(cached) * block_tokens
        self._waiting.remove(job)
        self._running.append(job)
        job.slot = heapq.heappop(self._free_slots)
        job.phase = JobPhase.PREFILL
        job.decode_from_s = now_s + job.uncached_tokens / self.limits.prefill_tokens_per_s
        self._schedule(job.decode_from_s, _Event.FIRST_TOKEN, job)
        return True

    def _first_token(self, job: Job, now_s: float) -> None:
        job.phase = JobPhase.DECODE
        if job.first_token_at_s is None:
            job.first_token_at_s = now_s
            self.counters.prompt_tokens += job.prompt_tokens
            self.counters.cached_tokens += job.cached_tokens
            self._touched[job] = None
        self.counters.prefill_s += job.uncached_tokens / self.limits.prefill_tokens_per_s
        self._name_full_blocks(job, job.prompt_tokens + job.kept_tokens)
        left = job.output_tokens - job.kept_tokens
        last_s = now_s + max(0, left - 1) / self.limits.decode_tokens_per_s
        self._schedule(last_s, _Event.FINISH, job)
        self._schedule_growth(job, now_s)

    def _schedule_growth(self, job: Job, now_s: float) -> None:
        """Ask for a block at the moment of the first token that has no room."""
        room = job.held_blocks * self.limits.kv_block_tokens - job.prompt_tokens
        if room >= job.output_tokens:
            return
        at_s = job.decode_from_s + (room - job.kept_tokens) / self.limits.decode_tokens_per_s
        self._schedule(max(at_s, now_s), _Event.GROW, job)

    def _grow(self, job: Job, now_s: float) -> None:
        while not self._pool.take(1):
            victim = self._running[-1]
            self._preempt(victim, now_s)
            if victim is job:
                return
        job.held_plain += 1
        self._schedule_growth(job, now_s)

    def _preempt(self, job: Job, now_s: float) -> None:
        # At least one token is left for the next run, so that it ends as every run does.
        ready = job.ready_tokens(now_s, self.limits.decode_tokens_per_s)
        job.kept_tokens = min(ready, job.output_tokens - 1)
        self._stop(job)
        job.preemptions += 1
        self.counters.preemptions += 1
        job.phase = JobPhase.WAITING
        self._waiting.appendleft(job)

    def _finish(self, job: Job, now_s: float) -> None:
        self._name_full_blocks(job, job.prompt_tokens + job.output_tokens)
        self.counters.decode_s += now_s - job.decode_from_s
        self.counters.generated_tokens += job.output_tokens
        self.counters.finished_requests += 1
        self.counters.length_limited_requests += job.length_limited
        total = job.prompt_tokens + job.output_tokens
        self.counters.longest_context_tokens = max(self.counters.longest_context_tokens, total)
        self._stop(job)
        job.phase = JobPhase.FINISHED
        job.finished_at_s = now_s
        self._touched[job] = None
        self._start_waiting(now_s)

    def _name_full_blocks(self, job: Job, tokens: int) -> None:
        for block in job.hashes[len(job.held_hashes) : tokens // self.limits.kv_block_tokens]:
            if job.held_plain == 0 or not self._pool.name(block):
                return
            job.held_plain -= 1
            job.held_hashes.append(block)

    def _stop(self, job: Job) -> None:
        """Take `job` out of execution and give its slot and blocks back."""
        assert job.slot is not None
        self._running.remove(job)
        heapq.heappush(self._free_slots, job.slot)
        self._pool.release(job.held_hashes, job.held_plain)
        job.slot, job.held_hashes, job.held_plain = None, [], 0
        job.run += 1

    def _schedule(self, at_s: float, event: _Event, job: Job) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event, job, job.run))

    def state(self, now_s: float) -> EngineState:
        """A picture of the engine at `now_s`, for a metrics page."""
        self._advance(now_s)
        loaded = {job.lora for job in self._running if job.lora is not None}
        wanted = [job.lora for job in self._waiting if job.lora is not None]
        deferred = sum(1 for lora in wanted if lora not in loaded) if len(loaded) >= self.limits.max_lora else 0
        ready = {job: self.ready_tokens(job, now_s) for job in self._running}
        slots: list[SlotState | None] = [None] * self.limits.slots
        for job, tokens in ready.items():
            assert job.slot is not None
            slots[job.slot] = SlotState(prompt_tokens=job.prompt_tokens, ready_tokens=tokens)
        return EngineState(
            at_s=now_s,
            slot_count=self.limits.slots,
            running_requests=len(self._running),
            prefilling_requests=sum(1 for job in self._running if job.phase is JobPhase.PREFILL),
            waiting_requests=len(self._waiting),
            deferred_requests=deferred,
            context_tokens=sum(job.prompt_tokens + tokens for job, tokens in ready.items()),
            prefilling_tokens=sum(job.uncached_tokens for job in self._running if job.phase is JobPhase.PREFILL),
            waiting_tokens=sum(job.prompt_tokens + job.kept_tokens for job in self._waiting),
            used_blocks=self._pool.used_blocks,
            idle_blocks=self._pool.idle_blocks,
            total_blocks=self._pool.total_blocks,
            evicted_blocks=self._pool.evicted_blocks,
            block_tokens=self.limits.kv_block_tokens,
            generated_tokens=self.counters.generated_tokens
            + sum(ready.values())
            + sum(job.kept_tokens for job in self._waiting),
            running_lora=tuple(sorted(loaded)),
            waiting_lora=tuple(sorted(set(wanted))),
            slots=tuple(slots),
            counters=self.counters.copy(),
        )
