"""Requests that get another model than the one their body names, mode by mode; and those that cannot."""

import json
from collections.abc import Sequence

import pytest

from epp.config.settings import RequestSettings
from epp.extproc.actions import Action, Continue, NewBody, Part, Piece, Refuse, RouteTo
from epp.extproc.events import BodyChunk, BodyMode, RequestHeaders, RequestTrailers, ResponseHeaders
from epp.extproc.session import TAKE_AWAY, Session
from epp.pool.model_rewrites import RewriteRule, RewriteTarget
from tests.extproc.exchange import DESTINATION, Bench

LONG_NAME = "llama-3-8b-instruct-canary"
BODY = b'{"model": "llama", "seed": 12345678901234567890, "messages": []}'
CHANGED = BODY.replace(b"llama", LONG_NAME.encode())
GROWTH = len(CHANGED) - len(BODY)
RULE = RewriteRule("canary", ("llama",), (RewriteTarget(LONG_NAME, 1),))
EVERY_MODEL = RewriteRule("all", (), (RewriteTarget("the-one", 1),))
GO_ON = Continue(Part.REQUEST_BODY)
TAKEN = "rewritten by canary: llama to llama-3-8b-instruct-canary"


def headers(body: bytes | None = None, **more: str) -> dict[str, str]:
    """Of a JSON request; with `content-length` if the body is given."""
    length = {} if body is None else {"content-length": str(len(body))}
    return {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", **length, **more}


def started(bench: Bench, mode: BodyMode, request_headers: dict[str, str]) -> tuple[Session, list[Action]]:
    session = Session(bench.exchange)
    return session, session.receive(RequestHeaders(request_headers, request_body_mode=mode))


def whole(bench: Bench, mode: BodyMode, body: bytes = BODY, request_headers: dict[str, str] | None = None) -> list[Action]:
    """All answers to a request whose body comes in one chunk with an end mark."""
    session, answers = started(bench, mode, headers(body) if request_headers is None else request_headers)
    answers += session.receive(BodyChunk(body, end_of_stream=True))
    session.drained()
    assert bench.budget.held_bytes == 0
    assert bench.bugs == []
    return answers


def body_of(answers: Sequence[Action]) -> bytes:
    """What the pieces say together."""
    return b"".join(a.body for a in answers if isinstance(a, Piece))


# ── full duplex ──


def test_in_full_duplex_the_changed_body_comes_in_pieces_and_the_pick_says_its_length() -> None:
    bench = Bench(rules=[RULE])
    assert whole(bench, BodyMode.FULL_DUPLEX_STREAMED) == [
        RouteTo(DESTINATION, content_length=len(CHANGED)),
        Piece(Part.REQUEST_BODY, CHANGED, True),
    ]


def test_without_a_declared_length_none_is_said() -> None:
    answers = whole(Bench(rules=[RULE]), BodyMode.FULL_DUPLEX_STREAMED, request_headers=headers())
    assert answers == [RouteTo(DESTINATION), Piece(Part.REQUEST_BODY, CHANGED, True)]


def test_a_long_body_in_many_chunks_changes_in_its_model_only() -> None:
    body = b'{"messages": [{"content": "' + b"llama " * 60_000 + b'"}], "model": "llama"}'
    session, answers = started(Bench(rules=[RULE]), BodyMode.FULL_DUPLEX_STREAMED, headers(body))
    for at in range(0, len(body), 30_000):
        answers += session.receive(BodyChunk(body[at : at + 30_000]))
    answers += session.receive(BodyChunk(b"", end_of_stream=True))
    assert answers[0] == RouteTo(DESTINATION, content_length=len(body) + GROWTH)
    assert body_of(answers) == body[: -len(b'llama"}')] + LONG_NAME.encode() + b'"}'
    assert [a.end_of_stream for a in answers[1:] if isinstance(a, Piece)] == [False] * (len(answers) - 2) + [True]


def test_a_body_that_trailers_end_is_rewritten_too() -> None:
    session, _ = started(Bench(rules=[RULE]), BodyMode.FULL_DUPLEX_STREAMED, headers())
    session.receive(BodyChunk(BODY))
    assert session.receive(RequestTrailers()) == [
        RouteTo(DESTINATION),
        Piece(Part.REQUEST_BODY, CHANGED, False),
        Continue(Part.REQUEST_TRAILERS),
    ]


# ── buffered ──


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_where_envoy_holds_the_body_its_reply_brings_the_changed_one_and_its_length(mode: BodyMode) -> None:
    """Field report 19: a longer name in buffered mode, with the length to match."""
    assert whole(Bench(rules=[RULE]), mode) == [
        Continue(Part.REQUEST_HEADERS),
        RouteTo(DESTINATION, Part.REQUEST_BODY, content_length=len(CHANGED), body=CHANGED),
    ]


@pytest.mark.parametrize("mode", list(BodyMode))
def test_without_rules_no_body_is_mutated(mode: BodyMode) -> None:
    """Field report 19: with rewriting off there is no body mutation at all."""
    answers = whole(Bench(), mode)
    assert not [a for a in answers if isinstance(a, NewBody)]
    assert [(a.body, a.content_length) for a in answers if isinstance(a, RouteTo)] == [(None, None)]
    assert body_of(answers) == (BODY if mode is BodyMode.FULL_DUPLEX_STREAMED else b"")


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED])
def test_a_rule_that_decides_for_the_model_that_is_there_changes_nothing_and_is_counted(mode: BodyMode) -> None:
    bench = Bench(rules=[RewriteRule("split", ("llama",), (RewriteTarget("llama", 1),))])
    routes = [a for a in whole(bench, mode) if isinstance(a, RouteTo)]
    assert [(a.body, a.content_length) for a in routes] == [(None, None)]
    assert bench.observer.counts["rewritten by split: llama to llama"] == 1


def test_a_part_of_a_body_that_names_the_model_is_changed_and_the_whole_length_corrected() -> None:
    part = b'{"model": "llama", "messages": [{"content": "' + b"x" * 70_000
    bench = Bench(rules=[RULE])
    session, _ = started(bench, BodyMode.BUFFERED_PARTIAL, headers() | {"content-length": "500000"})
    (route,) = session.receive(BodyChunk(part))
    changed = part.replace(b"llama", LONG_NAME.encode())
    assert route == RouteTo(DESTINATION, Part.REQUEST_BODY, content_length=500_000 + GROWTH, body=changed)
    assert bench.requests[0].model == LONG_NAME
    assert bench.observer.counts["not inspected: not_rewritten"] == 0


def test_a_part_of_a_body_that_names_no_model_goes_on_unchanged_and_is_told() -> None:
    bench = Bench(rules=[RULE])
    session, _ = started(bench, BodyMode.BUFFERED_PARTIAL, headers() | {"content-length": "500000"})
    assert session.receive(BodyChunk(b'{"messages": [{"content": "x')) == [RouteTo(DESTINATION, Part.REQUEST_BODY)]
    assert bench.observer.counts["not inspected: not_rewritten"] == 1
    assert len(bench.warnings) == 1
    assert "BUFFERED_PARTIAL" in bench.warnings[0]


# ── streamed ──


def test_in_streamed_chunks_are_taken_away_until_the_declared_length_is_there_and_then_all_comes_changed() -> None:
    bench = Bench(rules=[RULE])
    session, answers = started(bench, BodyMode.STREAMED, headers(BODY))
    assert answers == [RouteTo(DESTINATION)]
    assert session.receive(BodyChunk(BODY[:20])) == [TAKE_AWAY]
    session.drained()
    assert bench.budget.held_bytes == 20
    assert session.receive(BodyChunk(BODY[20:])) == [NewBody(Part.REQUEST_BODY, CHANGED)]
    session.drained()
    assert bench.budget.held_bytes == 0
    assert not session.collecting
    assert session.receive(BodyChunk(b"", end_of_stream=True)) == [GO_ON]
    assert bench.observer.counts[TAKEN] == 1


def test_in_streamed_a_body_with_trailers_comes_back_before_them() -> None:
    """No chunk is marked as the last then; the length tells which it is."""
    session, _ = started(Bench(rules=[RULE]), BodyMode.STREAMED, headers(BODY))
    assert session.receive(BodyChunk(BODY)) == [NewBody(Part.REQUEST_BODY, CHANGED)]
    assert session.receive(RequestTrailers()) == [Continue(Part.REQUEST_TRAILERS)]


def test_in_streamed_a_body_in_one_chunk_needs_no_declared_length() -> None:
    answers = whole(Bench(rules=[RULE]), BodyMode.STREAMED, request_headers=headers())
    assert answers == [RouteTo(DESTINATION), NewBody(Part.REQUEST_BODY, CHANGED)]


def test_in_streamed_a_body_in_pieces_without_a_length_goes_on_as_it_comes_and_that_is_told_once() -> None:
    bench = Bench(rules=[RULE])
    for _ in range(2):
        session, _ = started(bench, BodyMode.STREAMED, headers())
        assert session.receive(BodyChunk(BODY[:20])) == [GO_ON]
        assert session.receive(BodyChunk(BODY[20:], end_of_stream=True)) == [GO_ON]
        assert bench.budget.held_bytes == 0
    assert bench.observer.counts["not inspected: not_rewritten"] == 2
    assert len(bench.warnings) == 1
    assert "STREAMED" in bench.warnings[0]


def test_in_streamed_a_body_that_no_rule_matches_comes_back_as_it_was() -> None:
    body = b'{"model": "other", "prompt": "x"}'
    session, _ = started(Bench(rules=[RULE]), BodyMode.STREAMED, headers(body))
    session.receive(BodyChunk(body[:10]))
    assert session.receive(BodyChunk(body[10:], end_of_stream=True)) == [NewBody(Part.REQUEST_BODY, body)]
    assert whole(Bench(rules=[RULE]), BodyMode.STREAMED, body) == [RouteTo(DESTINATION), GO_ON]


def test_in_streamed_a_body_that_the_buffers_have_no_room_for_goes_on_as_it_comes() -> None:
    bench = Bench(rules=[RULE], max_buffered=50)
    session, _ = started(bench, BodyMode.STREAMED, headers(BODY))
    assert not session.collecting
    assert session.receive(BodyChunk(BODY, end_of_stream=True)) == [GO_ON]
    assert bench.observer.counts["not inspected: buffers_full"] == 1


def test_in_streamed_what_was_held_comes_back_when_the_buffers_are_full() -> None:
    bench = Bench(rules=[RULE], max_buffered=80)
    session, _ = started(bench, BodyMode.STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY[:30]))
    other, _ = started(bench, BodyMode.FULL_DUPLEX_STREAMED, headers())
    other.receive(BodyChunk(b"x" * 45))
    assert session.receive(BodyChunk(BODY[30:40])) == [NewBody(Part.REQUEST_BODY, BODY[:40])]
    assert session.receive(BodyChunk(BODY[40:], end_of_stream=True)) == [GO_ON]
    session.drained()
    assert bench.budget.held_bytes == 45


@pytest.mark.parametrize("more", [{"content-encoding": "gzip"}, {"content-type": "multipart/form-data; boundary=b"}])
def test_in_streamed_what_is_no_json_is_not_held_back(more: dict[str, str]) -> None:
    session, _ = started(Bench(rules=[RULE]), BodyMode.STREAMED, headers(BODY) | more)
    assert not session.collecting
    assert session.receive(BodyChunk(BODY[:20])) == [GO_ON]


def test_in_streamed_an_early_answer_of_the_model_server_does_not_cut_the_body() -> None:
    session, _ = started(Bench(rules=[RULE]), BodyMode.STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY[:20]))
    session.receive(ResponseHeaders({":status": "200"}))
    assert session.receive(BodyChunk(BODY[20:], end_of_stream=True)) == [NewBody(Part.REQUEST_BODY, CHANGED)]


def test_in_streamed_a_held_body_whose_end_never_comes_is_given_up() -> None:
    bench = Bench(rules=[RULE])
    session, _ = started(bench, BodyMode.STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY[:20]))
    (refusal,) = session.expire()
    assert isinstance(refusal, Refuse)
    assert refusal.error.code == "body_timeout"
    assert bench.budget.held_bytes == 0


def test_in_streamed_trailers_before_the_declared_end_are_refused_rather_than_the_body_lost() -> None:
    session, _ = started(Bench(rules=[RULE]), BodyMode.STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY[:20]))
    (refusal,) = session.receive(RequestTrailers())
    assert isinstance(refusal, Refuse)
    assert refusal.error.code == "bad_request"


# ── which requests ──


def test_the_pick_is_made_for_the_new_model_and_telemetry_has_both() -> None:
    bench = Bench(rules=[RULE])
    session, _ = started(bench, BodyMode.FULL_DUPLEX_STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY, end_of_stream=True))
    session.end(cancelled=False)
    (request,), (outcome,) = bench.requests, bench.observer.outcomes
    assert (request.model, request.client_model) == (LONG_NAME, "llama")
    assert (outcome.model, outcome.target_model) == ("llama", LONG_NAME)
    assert bench.observer.counts[TAKEN] == 1


def test_a_request_that_no_rule_matches_is_as_it_would_be_without_rules() -> None:
    body = b'{"model": "other"}'
    bench = Bench(rules=[RULE])
    assert whole(bench, BodyMode.FULL_DUPLEX_STREAMED, body) == [RouteTo(DESTINATION), Piece(Part.REQUEST_BODY, body, True)]
    assert (bench.requests[0].model, bench.requests[0].client_model) == ("other", None)


@pytest.mark.parametrize(
    "body", [b"{}", b'{"model": null}', b'{"model": ""}', b'{"model": 5}', b"[]", b"", b"{", b'{"model": "a\\u0000"}']
)
def test_a_body_that_names_no_model_is_left_alone_also_by_a_rule_for_every_model(body: bytes) -> None:
    """The contract lets a rewrite change the value of `model`, not add one."""
    bench = Bench(rules=[EVERY_MODEL])
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED, body)) == body
    assert bench.requests[0].model is None
    assert bench.warnings == []


def test_a_rule_for_every_model_changes_what_only_the_lenient_reader_takes() -> None:
    body = b'{"temperature": NaN, "model": "llama", "x": "\\ud800"}'
    changed = body.replace(b"llama", b"the-one")
    assert body_of(whole(Bench(rules=[EVERY_MODEL]), BodyMode.FULL_DUPLEX_STREAMED, body)) == changed


def test_a_compressed_body_is_not_rewritten() -> None:
    bench = Bench(rules=[EVERY_MODEL])
    request_headers = headers(BODY) | {"content-encoding": "gzip"}
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED, BODY, request_headers)) == BODY
    assert bench.observer.counts["not inspected: opaque"] == 1


def test_a_form_is_not_rewritten_and_that_is_told() -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nllama\r\n--b--\r\n'
    bench = Bench(rules=[RULE])
    request_headers = headers(body) | {"content-type": "multipart/form-data; boundary=b"}
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED, body, request_headers)) == body
    assert (bench.requests[0].model, bench.requests[0].client_model) == ("llama", None)
    assert bench.observer.counts["not inspected: not_rewritten"] == 1
    assert bench.observer.counts[TAKEN] == 0
    assert len(bench.warnings) == 1


def test_strict_mode_takes_every_model_that_a_rule_replaces_and_checks_the_others() -> None:
    bench = Bench(rules=[RULE], requests=RequestSettings(strict=True, models=("known",)))
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED)) == CHANGED
    known = b'{"model": "known"}'
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED, known)) == known
    for body, code in ((b'{"model": "unknown"}', "model_not_found"), (b"{}", "bad_request")):
        refusal = whole(bench, BodyMode.FULL_DUPLEX_STREAMED, body)[-1]
        assert isinstance(refusal, Refuse)
        assert refusal.error.code == code


def test_rules_that_come_and_go_count_for_the_next_request() -> None:
    bench = Bench()
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED)) == BODY
    bench.rewrites.replace([RULE])
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED)) == CHANGED
    bench.rewrites.replace([])
    assert body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED)) == BODY


def test_rules_that_go_while_a_streamed_body_is_held_leave_it_whole() -> None:
    bench = Bench(rules=[RULE])
    session, _ = started(bench, BodyMode.STREAMED, headers(BODY))
    session.receive(BodyChunk(BODY[:20]))
    bench.rewrites.replace([])
    assert session.receive(BodyChunk(BODY[20:], end_of_stream=True)) == [NewBody(Part.REQUEST_BODY, BODY)]


def test_weights_share_the_requests_out() -> None:
    rule = RewriteRule("split", (), (RewriteTarget("a", 9), RewriteTarget("b", 1)))
    bench = Bench(rules=[rule])
    for _ in range(1000):
        body = body_of(whole(bench, BodyMode.FULL_DUPLEX_STREAMED))
        assert json.loads(body)["model"] == bench.requests[-1].model
    shares = [sum(request.model == model for request in bench.requests) for model in "ab"]
    assert sum(shares) == 1000
    assert 850 < shares[0] < 950
