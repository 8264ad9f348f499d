"""Reading protobuf without building messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.raw_message import RawHeaders, UnexpectedShapeError, read_varint, varint


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_a_varint_comes_back_as_it_was(value: int, after: bytes) -> None:
    assert read_varint(varint(value) + after, 0) == (value, len(varint(value)))


def test_a_varint_without_end_is_refused() -> None:
    with pytest.raises(UnexpectedShapeError):
        read_varint(b"\xff" * 20, 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff", 0)


def headers(*pairs: tuple[str, str]) -> RawHeaders:
    fields = b""
    for name, value in pairs:
        pair = b"\x0a" + varint(len(name)) + name.encode() + b"\x1a" + varint(len(value.encode())) + value.encode()
        fields += b"\x0a" + varint(len(pair)) + pair
    return RawHeaders(b"xx" + fields + b"yy", 2, 2 + len(fields))


def test_headers_are_a_mapping() -> None:
    got = headers((":path", "/x"), ("odd", "é" * 200), ("odd", "2"))
    assert got[":path"] == "/x"
    assert got["odd"] == "é" * 200
    assert set(got) == {":path", "odd"}
    assert len(got) == 2
    assert "nobody" not in got
    with pytest.raises(KeyError):
        got["content-type"]


def test_a_name_inside_a_value_is_not_taken_for_a_header() -> None:
    assert headers(("x", "content-type"), ("y", "x-request-id: 5")).get("content-type") is None


def test_what_stands_outside_the_map_is_not_looked_at() -> None:
    inside = headers((":path", "/x"))
    assert not inside.mention([b"xx", b"yy"])
    assert inside.mention([b"nobody", b"path"])
