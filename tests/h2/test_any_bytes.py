"""Whatever a peer sends: nothing raises, nothing hangs, memory stays within the limits, calls end once."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.h2.frames import PREFACE
from epp.h2.frames import settings as settings_frame
from tests.h2.fuzz_program import Program
from tests.h2.peer import Peer

CORPUS = Path(__file__).parent / "corpus"
HELLO = PREFACE + settings_frame({})
STEPS = st.lists(st.tuples(st.integers(0, 19), st.binary(min_size=2, max_size=12)), max_size=120).map(
    lambda steps: b"\0" + b"".join(bytes([instruction]) + operands for instruction, operands in steps)
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_program_of_a_hostile_peer(code: bytes) -> None:
    Program(code).run()


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_any_program_of_many_steps(code: bytes) -> None:
    Program(code).run()


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_cuts_change_nothing(code: bytes) -> None:
    whole, pieces, bytewise = Program(code, chunk=1 << 20), Program(code, chunk=7), Program(code, chunk=1)
    for program in (whole, pieces, bytewise):
        program.run()

    assert bytes(whole.output) == bytes(pieces.output) == bytes(bytewise.output)
    assert whole.seen == pieces.seen == bytewise.seen


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2_000), st.booleans(), st.integers(1, 50))
def test_any_bytes_with_and_without_a_preface(spoken: bytes, greet: bool, chunk: int) -> None:
    peer = Peer(greet=False)
    said = (HELLO if greet else b"") + spoken
    for at in range(0, len(said), chunk):
        peer.send(said[at : at + chunk])

    assert len(peer.connection._rest) < 16_384 + 9
    peer.connection.lost()
    assert all(call.ends == 1 for call in peer.calls)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_good_conversation_with_changed_bytes(data: st.DataObject) -> None:
    good = bytearray(HELLO + Peer().request(1) + Peer().request(3) + b"\0\0\x08\0\1\0\0\0\1" + b"\0\0\0\0\3abc")
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    peer = Peer(greet=False)
    peer.send(bytes(good))
    peer.connection.lost()

    assert all(call.ends == 1 for call in peer.calls)


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("*")))
def test_what_the_fuzzer_found_interesting(name: str) -> None:
    code = (CORPUS / name).read_bytes()
    Program(code).run()
    whole, bytewise = Program(code, chunk=1 << 20), Program(code, chunk=1)
    whole.run()
    bytewise.run()

    assert whole.output == bytewise.output
    assert whole.seen == bytewise.seen
