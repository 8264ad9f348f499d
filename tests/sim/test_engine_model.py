"""The engine model, driven by times that the tests make up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.sim.engine_model import EngineModel
from epp.sim.job import Job, JobPhase
from epp.sim.limits import ContextLengthError, EngineLimits, QueueFullError


def make_model(
    *,
    slots: int = 2,
    max_queue: int | None = None,
    kv_blocks: int = 100,
    max_lora: int = 1,
    prefill: float = 100.0,
    decode: float = 10.0,
) -> EngineModel:
    """Prompts of 100 tokens take a second, so do ten answer tokens; blocks have ten tokens."""
    limits = EngineLimits(
        slots=slots,
        max_queue_requests=max_queue,
        prefill_tokens_per_s=prefill,
        decode_tokens_per_s=decode,
        kv_blocks=kv_blocks,
        kv_block_tokens=10,
        max_lora=max_lora,
    )
    return EngineModel(limits)


def make_job(prompt: int = 100, output: int = 11, hashes: tuple[int, ...] = (), lora: str | None = None) -> Job:
    return Job(prompt_tokens=prompt, output_tokens=output, hashes=hashes, lora=lora)


def phase_of(job: Job) -> JobPhase:
    """The phase now; mypy would remember the one that was checked last."""
    return job.phase


def test_the_first_token_comes_after_the_prefill_and_the_others_at_the_decode_rate() -> None:
    model, job = make_model(), make_job(prompt=100, output=11)

    model.submit(job, 5.0)

    assert model.advance(5.9) == []
    assert model.ready_tokens(job, 5.9) == 0
    assert model.advance(6.0) == [job]
    assert model.ready_tokens(job, 6.0) == 1
    model.advance(6.55)
    assert model.ready_tokens(job, 6.55) == 6
    assert model.advance(7.0) == [job]
    assert phase_of(job) is JobPhase.FINISHED
    times = job.times()
    assert (times.first_token_s, times.decode_s, times.total_s, times.per_token_s) == pytest.approx((1, 1, 2, 0.1))


def test_a_job_that_starts_and_ends_between_two_looks_is_told_once() -> None:
    model, job = make_model(), make_job()
    model.submit(job, 0.0)

    assert model.advance(10.0) == [job]
    assert model.advance(11.0) == []


def test_the_result_does_not_depend_on_how_often_time_is_told() -> None:
    def finish_times(step_s: float) -> list[float | None]:
        model = make_model(slots=2, kv_blocks=26)
        jobs = [make_job(prompt=50 + 7 * number, output=30 + number) for number in range(5)]
        for number, job in enumerate(jobs):
            model.submit(job, 0.25 * number)
        now_s = 1.0
        while now_s < 60:
            now_s += step_s
            model.advance(now_s)
        return [job.finished_at_s for job in jobs]

    assert finish_times(0.01) == finish_times(0.7) == finish_times(59.0)
    assert None not in finish_times(59.0)


def test_requests_beyond_the_slots_wait_in_order() -> None:
    model = make_model(slots=1)
    first, second, third = make_job(), make_job(), make_job()
    for job in (first, second, third):
        model.submit(job, 0.0)

    assert (model.running_requests, model.waiting_requests) == (1, 2)
    model.advance(2.0)
    assert phase_of(second) is JobPhase.PREFILL
    assert phase_of(third) is JobPhase.WAITING
    model.advance(4.0)
    assert second.times().queue_s == pytest.approx(2.0)
    assert third.started_at_s == pytest.approx(4.0)


def test_a_full_queue_refuses_and_counts_it() -> None:
    model = make_model(slots=1, max_queue=1)
    model.submit(make_job(), 0.0)
    model.submit(make_job(), 0.0)

    with pytest.raises(QueueFullError):
        model.submit(make_job(), 0.0)

    assert model.waiting_requests == 1
    assert model.state(0.0).counters.rejected_requests == 1


def test_a_queue_of_length_zero_lets_in_what_can_start_at_once() -> None:
    model = make_model(slots=1, max_queue=0)
    model.submit(make_job(), 0.0)

    with pytest.raises(QueueFullError):
        model.submit(make_job(), 0.0)


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ContextLengthError, match="at most 1000 tokens, found 1001"):
        make_model().submit(make_job(prompt=990, output=11), 0.0)


def test_a_prompt_waits_while_blocks_are_short_though_slots_are_free() -> None:
    model = make_model(slots=4, kv_blocks=14)
    first, second = make_job(prompt=100), make_job(prompt=50)
    model.submit(first, 0.0)
    model.submit(second, 0.0)

    assert phase_of(second) is JobPhase.WAITING
    assert model.kv_usage_ratio == pytest.approx(10 / 14)
    model.advance(2.0)
    assert phase_of(second) is JobPhase.PREFILL


def test_blocks_grow_with_the_answer() -> None:
    model, job = make_model(), make_job(prompt=100, output=21)
    model.submit(job, 0.0)

    assert model.state(0.5).used_blocks == 10
    assert model.state(1.0).used_blocks == 11
    assert model.state(1.95).used_blocks == 11
    assert model.state(2.0).used_blocks == 12
    model.advance(3.0)
    assert model.state(3.0).used_blocks == 0


def test_a_known_prefix_is_not_computed_again() -> None:
    model = make_model()
    prefix = tuple(range(10))
    model.submit(make_job(prompt=100, output=1, hashes=prefix), 0.0)
    model.advance(1.0)
    follower = make_job(prompt=120, output=1, hashes=(*prefix, 50, 51))

    model.submit(follower, 2.0)
    model.advance(2.2)

    assert follower.cached_tokens == 100
    assert follower.first_token_at_s == pytest.approx(2.2)
    counters = model.state(2.2).counters
    assert (counters.reused_blocks, counters.looked_up_blocks, counters.cached_tokens) == (10, 9 + 11, 100)


def test_the_last_prompt_token_is_always_computed() -> None:
    model = make_model()
    hashes = tuple(range(10))
    model.submit(make_job(prompt=100, output=1, hashes=hashes), 0.0)
    model.advance(1.0)
    same = make_job(prompt=100, output=1, hashes=hashes)

    model.submit(same, 1.0)

    assert same.cached_tokens == 90


def test_the_answer_of_one_turn_is_a_known_prefix_of_the_next() -> None:
    model = make_model()
    hashes = tuple(range(12))
    model.submit(make_job(prompt=100, output=20, hashes=hashes), 0.0)
    model.advance(3.0)
    next_turn = make_job(prompt=150, output=1, hashes=(*hashes, 90, 91, 92))

    model.submit(next_turn, 3.0)

    assert next_turn.cached_tokens == 120


def test_when_no_block_is_left_the_job_that_started_last_is_preempted_and_keeps_its_tokens() -> None:
    model = make_model(slots=2, kv_blocks=12)
    first, second = make_job(prompt=55, output=35), make_job(prompt=55, output=35)
    model.submit(first, 0.0)
    model.submit(second, 0.0)

    model.advance(1.2)

    assert phase_of(second) is JobPhase.WAITING
    assert (second.preemptions, first.preemptions) == (1, 0)
    assert second.kept_tokens > 0
    assert model.state(1.2).counters.preemptions == 1
    model.advance(60.0)
    assert {phase_of(first), phase_of(second)} == {JobPhase.FINISHED}
    assert first.finished_at_s == pytest.approx(0.55 + 3.4)
    assert model.state(60.0).generated_tokens == 70


def test_an_adapter_too_many_waits_and_lets_others_pass() -> None:
    model = make_model(slots=4, max_lora=1)
    running, other, plain = make_job(lora="a"), make_job(lora="b"), make_job()
    for job in (running, other, plain):
        model.submit(job, 0.0)

    state = model.state(0.0)

    assert (state.running_lora, state.waiting_lora) == (("a",), ("b",))
    assert (state.running_requests, state.waiting_requests, state.deferred_requests) == (2, 1, 1)
    model.advance(2.0)
    assert phase_of(other) is JobPhase.PREFILL


@pytest.mark.parametrize("at_s", [0.5, 1.5])
def test_a_cancelled_job_gives_its_slot_and_blocks_to_the_next(at_s: float) -> None:
    model = make_model(slots=1)
    first, second = make_job(), make_job()
    model.submit(first, 0.0)
    model.submit(second, 0.0)

    model.cancel(first, at_s)

    assert phase_of(second) is JobPhase.PREFILL
    assert second.started_at_s == at_s
    assert model.state(at_s).used_blocks == 10
    assert model.state(at_s).counters.aborted_requests == 1


def test_cancelling_a_waiting_or_finished_job_touches_nothing_else() -> None:
    model = make_model(slots=1)
    first, second = make_job(), make_job()
    model.submit(first, 0.0)
    model.submit(second, 0.0)
    model.cancel(second, 1.0)
    model.advance(2.0)

    model.cancel(first, 2.0)

    assert phase_of(first) is JobPhase.FINISHED
    assert model.state(2.0).counters.aborted_requests == 1
    assert (model.running_requests, model.waiting_requests) == (0, 0)


def test_an_embedding_ends_with_its_prefill() -> None:
    model, job = make_model(), make_job(prompt=100, output=0)
    model.submit(job, 0.0)

    model.advance(1.0)

    assert phase_of(job) is JobPhase.FINISHED
    assert model.state(1.0).counters.generated_tokens == 0


def test_busy_time_counts_once_and_slot_time_for_each() -> None:
    model = make_model(slots=2)
    model.submit(make_job(), 0.0)
    model.submit(make_job(), 1.0)

    counters = model.state(10.0).counters

    assert counters.busy_s == pytest.approx(3.0)
    assert counters.slot_busy_s == pytest.approx(4.0)


def test_a_scrape_waits_for_the_prompt_batch_that_is_being_computed() -> None:
    model = make_model()
    assert model.batch_end_s(0.0, 50) == 0.0
    model.submit(make_job(prompt=120), 0.0)

    assert model.batch_end_s(0.2, 50) == pytest.approx(0.5)
    assert model.batch_end_s(0.6, 50) == pytest.approx(1.0)
    assert model.batch_end_s(1.1, 50) == pytest.approx(1.2)
    model.advance(1.3)
    assert model.batch_end_s(1.3, 50) == 1.3


def test_the_lowest_free_slot_is_taken() -> None:
    model = make_model(slots=3)
    jobs = [make_job(output=11 + number) for number in range(3)]
    for job in jobs:
        model.submit(job, 0.0)
    model.cancel(jobs[1], 0.5)
    fourth = make_job()

    model.submit(fourth, 0.6)

    assert fourth.slot == 1
    slots = model.state(0.6).slots
    assert [slot is not None for slot in slots] == [True, True, True]


@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(0, 60), st.integers(0, 2), st.floats(0, 3)), max_size=12),
    st.integers(1, 4),
    st.integers(18, 40),
)
def test_every_job_ends_and_nothing_is_left_behind(
    wishes: list[tuple[int, int, int, float]], slots: int, kv_blocks: int
) -> None:
    model = make_model(slots=slots, kv_blocks=kv_blocks)
    now_s = 0.0
    jobs = []
    for prompt, output, family, pause_s in wishes:
        now_s += pause_s
        hashes = tuple(family * 1000 + number for number in range((prompt + output) // 10))
        job = make_job(prompt=prompt, output=output, hashes=hashes)
        model.submit(job, now_s)
        jobs.append(job)
        state = model.state(now_s)
        assert state.running_requests <= slots
        assert state.used_blocks <= kv_blocks

    model.advance(now_s + 10_000)

    assert [job.phase for job in jobs] == [JobPhase.FINISHED] * len(jobs)
    state = model.state(now_s + 10_000)
    assert (state.used_blocks, state.running_requests, state.waiting_requests) == (0, 0, 0)
    assert state.generated_tokens == sum(job.output_tokens for job in jobs)
    assert model.next_event_at_s() is None
