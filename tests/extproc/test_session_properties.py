"""What holds for every order of events and every cut of bodies."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import NoEndpointError
from epp.extproc.actions import Action, Continue, NewBody, Part, Piece, Refuse, RouteTo
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
from epp.pool.model_rewrites import RewriteRule, RewriteTarget
from tests.extproc.exchange import Bench

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

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


RULES = [RewriteRule("all", (), (RewriteTarget("a-longer-name", 1),))]


@given(st.lists(events, max_size=12), st.booleans(), st.booleans(), st.sampled_from([[], RULES]))
@settings(max_examples=400)
def test_any_order_of_events_ends_clean(history: list[Event], refuse: bool, cancelled: bool, rules: list[RewriteRule]) -> None:
    """No exception, no bug, one pick at most, one end mark at most, no answer after a refusal, everything given back."""
    bench = Bench(max_body=100_000, max_buffered=150_000, rules=rules)
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


# The modes in which Envoy takes a body in pieces; in the others it comes in one.
streams = st.sampled_from([BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED])


def arrived(mode: BodyMode, chunks: list[bytes], answers: list[list[Action]]) -> bytes:
    """What the model server gets: the pieces, or in STREAMED each chunk as its one reply leaves it."""
    if mode is BodyMode.FULL_DUPLEX_STREAMED:
        return b"".join(a.body for said in answers for a in said if isinstance(a, Piece))
    body = b""
    for chunk, (reply,) in zip(chunks, answers, strict=True):
        assert isinstance(reply, (Continue, NewBody))
        body += reply.body if isinstance(reply, NewBody) else chunk
    return body


@given(
    streams,
    st.lists(st.integers(0, 130), max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["m", "other"]),
    st.booleans(),
)
def test_a_rewritten_body_arrives_whole_however_it_is_cut(
    mode: BodyMode, cuts: list[int], empty_end: bool, trailers: bool, model: str, crowded: bool
) -> None:
    """Nothing is lost or doubled, and only the model changes, if anything does."""
    body = b'{"messages": ["m", {"model": "m"}], "model" : "%s", "x": "%s"}' % (model.encode(), bytes(50).hex().encode())
    bench = Bench(max_buffered=200 if crowded else 1 << 20, rules=[RewriteRule("r", ("m",), (RewriteTarget("longer", 1),))])
    other = Session(bench.exchange)
    other.receive(RequestHeaders({}))
    other.receive(BodyChunk(bytes(90)))
    session = Session(bench.exchange)
    session.receive(RequestHeaders({"content-length": str(len(body))}, request_body_mode=mode))
    edges = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    chunks = [body[a:b] for a, b in pairwise(edges)] + [b""] * empty_end
    answers = [
        session.receive(BodyChunk(chunk, end_of_stream=not trailers and i == len(chunks) - 1)) for i, chunk in enumerate(chunks)
    ]
    if trailers:
        said = session.receive(RequestTrailers())
        assert said[-1] == Continue(Part.REQUEST_TRAILERS)
        if mode is BodyMode.FULL_DUPLEX_STREAMED:
            answers.append(said)
    result = arrived(mode, chunks, answers)
    if result != body:
        assert model == "m"
        assert json.loads(result) == {**json.loads(body), "model": "longer"}
    else:
        assert model == "other" or crowded
    session.end(cancelled=False)
    other.end(cancelled=False)
    assert bench.budget.held_bytes == 0
    assert bench.bugs == []


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
