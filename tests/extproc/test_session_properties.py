"""What holds for every order of events and every cut of bodies."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import NoEndpointError
from epp.extproc.actions import Continue, Part, Piece, Refuse, RouteTo
from epp.extproc.events import (
    BodyChunk,
    BodyMode,
    Event,
    RequestHeaders,
    RequestTrailers,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.extproc.names import MAX_PIECE_BYTES
from epp.extproc.session import Session
from tests.extproc.exchange import Bench

modes = st.sampled_from(BodyMode)
chunks = st.binary(max_size=200) | st.sampled_from([b"", b'{"model": "m"', b"}", bytes(70_000)])
names = st.sampled_from(["content-length", "content-type", "content-encoding", ":path", ":status", "x-request-id"])
values = st.sampled_from(
    ["", "5", "99999999999", "-1", "٣", "gzip", "application/json", "multipart/form-data; boundary=x", "200", "503"]
)
headers = st.dictionaries(names, values, max_size=4)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        RequestHeaders,
        headers=headers,
        end_of_stream=st.booleans(),
        subset=st.none() | st.just(frozenset({"10.0.0.1"})),
        request_body_mode=modes,
        response_body_mode=modes,
    ),
    st.builds(BodyChunk, body=chunks, end_of_stream=st.booleans()),
    st.builds(RequestTrailers),
    st.builds(ResponseHeaders, headers=headers, end_of_stream=st.booleans(), served=st.none() | st.just("10.0.0.2:1")),
    st.builds(ResponseChunk, body=chunks, end_of_stream=st.booleans()),
    st.builds(ResponseTrailers),
)


@given(st.lists(events, max_size=12), st.booleans(), st.booleans())
@settings(max_examples=400)
def test_any_order_of_events_ends_clean(history: list[Event], refuse: bool, cancelled: bool) -> None:
    """No exception, no bug, one pick at most, one end mark at most, no answer after a refusal, everything given back."""
    bench = Bench(max_body=100_000, max_buffered=150_000)
    bench.error = NoEndpointError("empty") if refuse else None
    session = Session(bench.exchange)
    routes = ends = 0
    for event in history:
        over = session.refused
        for action in session.receive(event):
            assert not over
            routes += isinstance(action, RouteTo)
            if isinstance(action, Piece):
                assert len(action.body) <= MAX_PIECE_BYTES
                ends += action.end_of_stream and action.part is Part.REQUEST_BODY
        assert 0 <= bench.budget.held_bytes <= 150_000
    assert bench.bugs == []
    assert routes <= 1
    assert ends <= 1
    session.end(cancelled=cancelled)
    assert bench.budget.held_bytes == 0
    assert all(pick.releases for pick in bench.picks)
    assert bench.observer.counts["ended"] == 1


@given(
    st.binary(max_size=3000) | st.just(bytes(200_000)),
    st.lists(st.integers(0, 200_000), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_any_cut_of_the_body_comes_back_joined(body: bytes, cuts: list[int], trailers: bool, crowded: bool) -> None:
    """Byte for byte, with one end, also where the buffers are full and the body passes through."""
    bench = Bench(max_buffered=1000 if crowded else 1 << 20)
    session = Session(bench.exchange)
    edges = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    answers = session.receive(RequestHeaders({":path": "/v1/completions"}))
    parts = [body[a:b] for a, b in pairwise(edges)]
    for i, part in enumerate(parts):
        answers += session.receive(BodyChunk(part, end_of_stream=not trailers and i == len(parts) - 1))
    if trailers:
        answers += session.receive(RequestTrailers())
    assert isinstance(answers[0], RouteTo)
    pieces = [a for a in answers if isinstance(a, Piece)]
    assert b"".join(p.body for p in pieces) == body
    assert [p.end_of_stream for p in pieces].count(True) == (0 if trailers else 1)
    if trailers:
        assert answers[-1] == Continue(Part.REQUEST_TRAILERS)
    else:
        assert answers[-1] is pieces[-1]
        assert pieces[-1].end_of_stream


@given(st.lists(chunks, max_size=6))
def test_a_session_that_waits_can_be_expired_at_any_moment(parts: list[bytes]) -> None:
    bench = Bench()
    session = Session(bench.exchange)
    session.receive(RequestHeaders({}))
    for part in parts:
        session.receive(BodyChunk(part))
    assert session.collecting
    (action,) = session.expire()
    assert isinstance(action, Refuse)
    assert bench.budget.held_bytes == 0
