"""The wait itself, on a clock that a test moves."""

from collections.abc import Sequence

from epp.drain.hook import DrainHook
from epp.drain.idle_watch import NoAnswer, PageAnswer, PickerAnswer, Silent, Told
from epp.drain.plan import DrainPlan
from tests.fakes.clock import FakeClock

IDLE = Told(0.0)


class Answers:
    """A source that answers from a list, the last one for ever, and takes its time."""

    name = "picker"

    def __init__(self, clock: FakeClock, *answers: PageAnswer | PickerAnswer, takes_s: float = 0.0) -> None:
        self.limits_s: list[float] = []
        self._clock = clock
        self._answers = list(answers)
        self._takes_s = takes_s

    async def sample(self, timeout_s: float) -> PageAnswer | PickerAnswer:
        self.limits_s.append(timeout_s)
        self._clock.advance(min(self._takes_s, timeout_s))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def wait(
    clock: FakeClock, page: Answers, pickers: Sequence[Answers] = (), *, min_wait_s: float = 0.0, max_wait_s: float = 60.0
) -> list[str]:
    """What the hook says."""
    said: list[str] = []
    plan = DrainPlan(engine="vllm", url="http://127.0.0.1:8000", min_wait_s=min_wait_s, max_wait_s=max_wait_s, call_s=2.0)

    async def sleep(seconds: float) -> None:
        assert seconds >= 0
        clock.advance(seconds)

    await DrainHook(plan, pickers, page, said.append, clock, sleep).run()  # type: ignore[arg-type]  # one fake for both kinds
    return said


async def test_a_line_is_said_when_a_source_changes_and_not_with_each_sample() -> None:
    clock = FakeClock()
    page = Answers(clock, Told(3.0), Told(2.0), Told(1.0), IDLE)

    assert await wait(clock, page, [Answers(clock, Told(3.0), Silent("away"), IDLE)]) == [
        "vllm drains, tells picker; waits 0 to 60 s",
        "the engine's page: 3 requests",
        "picker: 3 requests",
        "picker: away",
        "picker: no requests",
        "the engine's page: no requests",
        "done after 5.0 s: idle",
    ]


async def test_the_minimum_is_waited_when_all_is_idle() -> None:
    clock = FakeClock(0.0)

    await wait(clock, Answers(clock, IDLE), min_wait_s=7.0)

    assert clock.now_s == 9.0  # samples at 7, 8 and 9 s


async def test_the_maximum_ends_the_wait() -> None:
    clock = FakeClock(0.0)

    said = await wait(clock, Answers(clock, Told(1.0)), max_wait_s=10.5)

    assert clock.now_s == 10.5
    assert said[-1] == "gives up after 10.5 s, busy by the engine's page"


async def test_a_call_gets_no_more_time_than_is_left() -> None:
    clock = FakeClock(0.0)
    page = Answers(clock, NoAnswer("late"), takes_s=60.0)

    await wait(clock, page, max_wait_s=5.0)

    assert page.limits_s == [2.0, 2.0, 1.0]
    assert clock.now_s == 5.0


async def test_slow_calls_do_not_stretch_the_interval() -> None:
    clock = FakeClock(0.0)

    await wait(clock, Answers(clock, IDLE, takes_s=0.75))

    assert clock.now_s == 2.75  # samples begin at 0, 1 and 2 s
