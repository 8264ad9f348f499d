"""When a model server may be stopped, decided from lists of samples."""

import pytest

from epp.drain.idle_watch import Gone, IdleWatch, NoAnswer, PageAnswer, PickerAnswer, Silent, Told, Unknown, Verdict, Waits

IDLE, BUSY, MANY = Told(0.0), Told(1.0), Told(7.0)
LATE, OFF, GONE, UNKNOWN = NoAnswer("late"), Silent("off"), Gone("gone"), Unknown("unknown")
NEITHER = "neither an endpoint picker nor the engine tells of requests, so only the minimum was waited"


def watch(
    pickers: int = 1, *, min_wait_s: float = 0.0, idle_samples: int = 3, lag_s: float = 0.0, freezes: bool = False
) -> IdleWatch:
    waits = Waits(min_wait_s=min_wait_s, idle_samples=idle_samples, page_lag_s=lag_s, page_freezes=freezes)
    return IdleWatch(waits, pickers)


def ends_at(watch: IdleWatch, samples: list[tuple[PageAnswer, PickerAnswer]]) -> int | None:
    """The index of the sample that ended the wait, one a second; None when none did."""
    for index, (page, picker) in enumerate(samples):
        if watch.take(float(index), page, [picker]).done:
            return index
    return None


@pytest.mark.parametrize(
    ("samples", "end"),
    [
        pytest.param([(IDLE, IDLE)] * 4, 2, id="idle from the start"),
        pytest.param([(BUSY, BUSY), (IDLE, BUSY), (IDLE, IDLE), (IDLE, IDLE), (IDLE, IDLE)], 4, id="both have to be idle"),
        pytest.param([(BUSY, IDLE)] * 9, None, id="the page alone is busy"),
        pytest.param([(IDLE, MANY)] * 9, None, id="the picker alone is busy"),
        pytest.param([(IDLE, IDLE), (IDLE, IDLE), (BUSY, IDLE), *[(IDLE, IDLE)] * 3], 5, id="the row begins anew"),
        pytest.param([(OFF, IDLE)] * 4, 2, id="without metrics the picker decides"),
        pytest.param([(OFF, BUSY), *[(OFF, IDLE)] * 4], 3, id="without metrics it waits for the picker"),
        pytest.param([(IDLE, OFF)] * 4, 2, id="without a picker the page decides"),
        pytest.param([(BUSY, OFF), *[(IDLE, OFF)] * 4], 3, id="without a picker it waits for the page"),
        pytest.param([(OFF, OFF)], 0, id="with neither nothing is waited for"),
        pytest.param([(BUSY, IDLE), *[(OFF, IDLE)] * 9], None, id="a page that fell silent is not idle"),
        pytest.param([(IDLE, IDLE), *[(OFF, IDLE)] * 9], None, id="nor when it was idle before"),
        pytest.param([(LATE, IDLE)] * 9, None, id="a page that comes too late is busy"),
        pytest.param([(OFF, MANY), *[(OFF, OFF)] * 9], None, id="the count of a picker that fell silent holds"),
        pytest.param([(OFF, IDLE), *[(OFF, OFF)] * 3], 2, id="also when it is zero"),
        pytest.param([(OFF, MANY), *[(OFF, LATE)] * 9], None, id="the count of a picker that is slow holds"),
        pytest.param([(OFF, MANY), (OFF, OFF), *[(OFF, IDLE)] * 3], 4, id="a restarted picker tells a new count"),
        pytest.param(
            [(BUSY, UNKNOWN), *[(IDLE, UNKNOWN)] * 4], 3, id="a picker that does not know the endpoint counts nothing"
        ),
        pytest.param([(OFF, MANY), *[(OFF, UNKNOWN)] * 9], None, id="unless it has counted before"),
        pytest.param([(BUSY, MANY), *[(GONE, MANY)] * 4], 3, id="a server that has ended has no requests"),
        pytest.param([(GONE, MANY)] * 9, None, id="one that was never seen may be somewhere else"),
        pytest.param([(GONE, OFF)] * 4, 2, id="nothing there, and no picker"),
        pytest.param([(GONE, IDLE)] * 4, 2, id="nothing there, and the picker counts nothing"),
    ],
)
def test_idle_samples_in_a_row_end_the_wait(samples: list[tuple[PageAnswer, PickerAnswer]], end: int | None) -> None:
    assert ends_at(watch(), samples) == end


def test_a_picker_has_to_say_twice_that_it_does_not_know_the_endpoint() -> None:
    once = watch(idle_samples=1)
    twice = watch(idle_samples=1, min_wait_s=1.0)

    assert once.take(0.0, OFF, [UNKNOWN]) == Verdict(True, NEITHER)
    assert not twice.take(0.0, OFF, [UNKNOWN]).done
    assert twice.take(1.0, OFF, [UNKNOWN]) == Verdict(True, "idle")


def test_samples_before_the_minimum_wait_do_not_count() -> None:
    three = watch(min_wait_s=10.0)

    assert [three.take(at_s, IDLE, [IDLE]).done for at_s in (0.0, 4.0, 8.0, 9.9, 10.0, 11.0, 12.0)] == [*[False] * 6, True]


def test_with_neither_source_the_minimum_is_waited_and_said() -> None:
    alone = watch(min_wait_s=5.0)

    assert not alone.take(4.9, OFF, [OFF]).done
    assert alone.take(5.0, OFF, [OFF]) == Verdict(True, NEITHER)


def test_what_was_learnt_during_the_minimum_wait_counts() -> None:
    """A source that spoke is heard, even when it falls silent before the minimum is over."""
    early = watch(min_wait_s=5.0)
    early.take(1.0, OFF, [MANY])

    assert early.take(6.0, OFF, [OFF]) == Verdict(False, "busy by the endpoint picker's count")


def test_every_picker_has_to_be_idle() -> None:
    two = watch(2, idle_samples=1)

    assert not two.take(0.0, OFF, [IDLE, BUSY]).done
    assert two.take(1.0, OFF, [IDLE, IDLE]).done


def test_idle_samples_of_a_page_that_lags_span_more_than_its_lag() -> None:
    lmdeploy = watch(lag_s=10.0)

    assert [lmdeploy.take(float(at_s), IDLE, [IDLE]).done for at_s in range(12)] == [*[False] * 11, True]


def test_the_lag_of_a_page_that_says_nothing_does_not_matter() -> None:
    assert ends_at(watch(lag_s=10.0), [(OFF, IDLE)] * 4) == 2


def test_a_page_that_may_stand_still_is_believed_after_it_has_shown_requests() -> None:
    never, before = watch(0, freezes=True), watch(0, freezes=True)

    assert not any(never.take(float(at_s), IDLE, []).done for at_s in range(9))
    assert [before.take(float(at_s), page, []).done for at_s, page in enumerate([BUSY, IDLE, IDLE, IDLE])] == [
        *[False] * 3,
        True,
    ]


def test_a_page_that_may_stand_still_is_believed_beside_a_picker() -> None:
    assert ends_at(watch(freezes=True), [(IDLE, IDLE)] * 4) == 2
