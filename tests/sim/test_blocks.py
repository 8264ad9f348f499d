"""The KV block pool."""

from hypothesis import given
from hypothesis import strategies as st

from epp.sim.blocks import BlockPool


def test_an_idle_block_counts_as_free_and_is_still_found() -> None:
    pool = BlockPool(4)
    assert pool.take(2)
    assert pool.name(11)
    assert pool.name(12)

    pool.release([11, 12], 0)

    assert (pool.used_blocks, pool.free_blocks, pool.idle_blocks) == (0, 4, 2)
    assert pool.match([11, 12, 13]) == 2


def test_a_prefix_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.name(1)
    pool.name(3)

    assert pool.match([1, 2, 3]) == 1
    assert pool.match([2, 3]) == 0


def test_a_shared_block_counts_once_and_stays_until_the_last_holder_leaves() -> None:
    pool = BlockPool(4)
    pool.take(1)
    pool.name(1)
    pool.hold([1])

    assert pool.used_blocks == 1
    pool.release([1], 0)
    assert pool.used_blocks == 1
    pool.release([1], 0)
    assert pool.used_blocks == 0


def test_the_least_recently_freed_block_is_evicted_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    pool = BlockPool(4)
    pool.take(4)
    for block in (1, 2, 3, 4):
        pool.name(block)
    pool.release([1, 2], 0)
    pool.release([3, 4], 0)

    assert pool.take(1)
    assert pool.match([1, 2]) == 1
    assert pool.take(1)
    assert pool.match([1]) == 0
    assert pool.match([3, 4]) == 2
    assert pool.evicted_blocks == 2


def test_too_large_a_wish_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.take(2)

    assert not pool.take(2)
    assert pool.used_blocks == 2


def test_waking_an_idle_block_needs_room_too() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.name(1)
    pool.release([1], 0)

    assert pool.fits([1], 1)
    assert not pool.fits([1], 2)


def test_a_hash_names_one_block_only() -> None:
    pool = BlockPool(2)
    pool.take(2)

    assert pool.name(1)
    assert not pool.name(1)
    assert pool.used_blocks == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans())))
def test_blocks_are_never_lost_and_never_invented(steps: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(8)
    held: list[tuple[list[int], int]] = []
    for base, count, let_go in steps:
        if let_go and held:
            pool.release(*held.pop(0))
        wanted = [base * 10 + offset for offset in range(count)]
        cached = wanted[: pool.match(wanted)]
        if pool.fits(cached, count - len(cached)):
            pool.hold(cached)
            assert pool.take(count - len(cached))
            named = [block for block in wanted[len(cached) :] if pool.name(block)]
            held.append((cached + named, count - len(cached) - len(named)))
        assert 0 <= pool.used_blocks <= 8
        assert pool.used_blocks + pool.free_blocks == 8
        assert pool.idle_blocks <= pool.free_blocks
    for hashes, plain in held:
        pool.release(hashes, plain)
    assert pool.used_blocks == 0
