"""Remembered header blocks say the same as a plain `hpack.Decoder` would, whatever the table goes through."""

from collections.abc import Iterable

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.h2.frames import ConnectionFaultError
from epp.h2.header_blocks import REMEMBERED_BLOCK_BYTES, REMEMBERED_BLOCKS, HeaderDecoder

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

NAMES = [b"x-a", b"x-bb", b"x-" + b"c" * 300, b"content-type"]
VALUES = [b"", b"1", b"two", b"v" * 700, b"w" * 3_000]


def integer(value: int, prefix_bits: int, first: int) -> bytes:
    """RFC 7541, section 5.1."""
    full = (1 << prefix_bits) - 1
    if value < full:
        return bytes([first | value])
    rest, found = value - full, [first | full]
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def string(text: bytes) -> bytes:
    return integer(len(text), 7, 0) + text


def indexed(index: int) -> bytes:
    return integer(index, 7, 0x80)


def literal(first: int, prefix_bits: int, index: int, name: bytes, value: bytes) -> bytes:
    return integer(index, prefix_bits, first) + (string(name) if index == 0 else b"") + string(value)


def inserted(name: bytes, value: bytes, index: int = 0) -> bytes:
    return literal(0x40, 6, index, name, value)


def resized(size: int) -> bytes:
    return integer(size, 5, 0x20)


NAME, VALUE = st.sampled_from(NAMES), st.sampled_from(VALUES)
INDEX = st.sampled_from([*range(1, 75), 0, 130, 200])
REPRESENTATIONS = st.one_of(
    st.builds(indexed, INDEX),
    st.builds(inserted, NAME, VALUE, st.sampled_from([0, 0, 31, 62, 63])),
    st.builds(lambda index, name, value: literal(0x00, 4, index, name, value), st.sampled_from([0, 31, 62]), NAME, VALUE),
    st.builds(lambda index, name, value: literal(0x10, 4, index, name, value), st.sampled_from([0, 31, 62]), NAME, VALUE),
)
SIZES = st.sampled_from([0, 40, 100, 800, 4_096])
HAND_MADE = st.builds(
    lambda sizes, fields: b"".join([*map(resized, sizes), *fields]),
    st.lists(SIZES, max_size=2),
    st.lists(REPRESENTATIONS, max_size=4),
)


def assert_same(blocks: Iterable[bytes]) -> None:
    """Decodes the blocks with both; they must agree on each, and on the one that breaks the connection."""
    remembering, plain = HeaderDecoder(max_header_list_bytes=65_536), Decoder(max_header_list_size=65_536)
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in plain.decode(block, raw=True)]
        except HPACKError:
            with pytest.raises(ConnectionFaultError):
                remembering.decode(block)
            return
        assert remembering.decode(block).fields == expected


@settings(max_examples=400)
@given(st.lists(HAND_MADE, min_size=1, max_size=6).flatmap(lambda pool: st.lists(st.sampled_from(pool), max_size=30)))
def test_blocks_made_by_hand_and_repeated_decode_as_without_memory(blocks: list[bytes]) -> None:
    assert_same(blocks)


FIELDS = st.lists(st.tuples(NAME, VALUE, st.booleans()), max_size=4)


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.none() | SIZES), min_size=1, max_size=20))
def test_blocks_of_an_encoder_whose_table_is_resized_decode_as_without_memory(
    rounds: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, blocks = Encoder(), []
    for fields, huffman, size in rounds:
        if size is not None:
            encoder.header_table_size = size
        blocks.append(encoder.encode(fields, huffman=huffman))
    assert_same(blocks)


def test_an_entry_inserted_and_evicted_at_once_still_changes_the_table() -> None:
    """The table is empty before and after, so only the bytes tell that it was emptied between."""
    fill = resized(100) + inserted(b"x-a", b"1")
    too_large = inserted(b"x-b", b"v" * 200)

    assert_same([fill, indexed(62), too_large, inserted(b"x-c", b"2"), indexed(62), too_large, indexed(62)])


def test_the_same_insertion_twice_leaves_a_table_of_other_entries() -> None:
    insert, name_both = inserted(b"x-a", b"1"), indexed(62) + indexed(63)

    assert_same([inserted(b"x-z", b"0"), insert, name_both, insert, name_both, insert, name_both])


def test_a_full_table_that_turns_over_keeps_its_length() -> None:
    blocks = [resized(40 * 3)]
    for turn in range(20):
        blocks += [inserted(b"x-a", b"%03d" % turn), indexed(62) + indexed(63), indexed(62) + indexed(63)]
    assert_same(blocks)


def test_a_table_that_turns_over_twice_in_a_block_may_look_as_before() -> None:
    """It has as many entries, and the newest may lie where the one before lay in memory: only the bytes tell."""
    for inserts in range(1, 6):
        blocks = [resized(40), inserted(b"x-a", b"0"), indexed(62)]
        for turn in range(1, 10):
            blocks += [b"".join(inserted(b"x-a", b"%d" % ((turn + at) % 10)) for at in range(inserts)), indexed(62)]
        assert_same(blocks)


def test_a_table_that_shrinks_and_grows_again_is_empty() -> None:
    assert_same([inserted(b"x-a", b"1"), indexed(62), resized(0) + resized(4_096), indexed(62)])


def test_a_size_update_to_the_same_size_changes_nothing_and_is_taken() -> None:
    assert_same([inserted(b"x-a", b"1"), indexed(62), resized(4_096), indexed(62), resized(4_096) + indexed(62)])


def test_a_block_that_names_indexes_only_is_decoded_once() -> None:
    decoder = HeaderDecoder(max_header_list_bytes=65_536)

    assert decoder.decode(indexed(2)) is decoder.decode(indexed(2))


def test_memory_of_blocks_is_bounded_in_number_and_size() -> None:
    decoder = HeaderDecoder(max_header_list_bytes=65_536)
    for number in range(REMEMBERED_BLOCKS * 3):
        decoder.decode(literal(0, 4, 0, b"x-a", b"%d" % number))
    long = literal(0, 4, 0, b"x-a", b"v" * REMEMBERED_BLOCK_BYTES)

    assert len(decoder._known) == REMEMBERED_BLOCKS
    decoder.decode(inserted(b"x-a", b"1"))
    assert decoder.decode(long).fields == decoder.decode(long).fields
    assert long not in decoder._known
