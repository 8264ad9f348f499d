"""The ext_proc session: events in, actions out."""

import json

import pytest

from epp.config.settings import RequestSettings
from epp.errors import BodyTooLargeError, NoEndpointError
from epp.extproc.actions import Action, Continue, Part, Piece, Refuse, RouteTo
from epp.extproc.decoder import decode
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
from epp.extproc.raw_message import RawHeaders
from epp.extproc.session import Session, objective_name
from epp.extproc.upstream_errors import Origin
from epp.pb.envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest
from tests.extproc.exchange import DESTINATION, Bench

POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
JSON_BODY = b'{"model": "m", "messages": []}'
OK = {":status": "200", "content-type": "application/json"}


def started(bench: Bench, **fields: object) -> Session:
    session = Session(bench.exchange)
    session.receive(RequestHeaders(**{"headers": POST, **fields}))  # type: ignore[arg-type]
    return session


def code(actions: list[Action]) -> str:
    assert isinstance(actions[-1], Refuse), actions
    return actions[-1].error.code


def test_the_pick_waits_for_the_end_of_the_body() -> None:
    bench = Bench()
    session = started(bench)
    assert session.receive(BodyChunk(JSON_BODY[:7])) == []
    assert session.receive(BodyChunk(JSON_BODY[7:], end_of_stream=True)) == [
        RouteTo(DESTINATION),
        Piece(Part.REQUEST_BODY, JSON_BODY, True),
    ]
    assert bench.requests[0].model == "m"


def test_headers_without_a_body_get_a_pick_at_once() -> None:
    """Field report 20: GET /v1/models, headers only."""
    session = Session(Bench().exchange)
    headers = {":method": "GET", ":path": "/v1/models"}
    assert session.receive(RequestHeaders(headers, end_of_stream=True)) == [RouteTo(DESTINATION)]


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC])
def test_where_the_headers_are_gone_after_their_reply_the_pick_is_in_it(mode: BodyMode) -> None:
    """Field report 28: no other mode is asked for, the pick is present."""
    session = Session(Bench().exchange)
    assert session.receive(RequestHeaders(POST, request_body_mode=mode)) == [RouteTo(DESTINATION)]


def test_a_streamed_body_is_passed_on_chunk_by_chunk() -> None:
    session = started(Bench(), request_body_mode=BodyMode.STREAMED)
    assert session.receive(BodyChunk(b"ab")) == [Continue(Part.REQUEST_BODY)]
    assert session.receive(BodyChunk(b"", end_of_stream=True)) == [Continue(Part.REQUEST_BODY)]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_a_buffered_body_carries_the_pick_in_its_own_reply_and_is_not_mutated(mode: BodyMode) -> None:
    """Field report 19: what the picker does not alter, it does not mutate."""
    bench = Bench()
    session = Session(bench.exchange)
    assert session.receive(RequestHeaders(POST, request_body_mode=mode)) == [Continue(Part.REQUEST_HEADERS)]
    assert session.receive(BodyChunk(JSON_BODY, end_of_stream=True)) == [RouteTo(DESTINATION, Part.REQUEST_BODY)]
    assert bench.requests[0].model == "m"


@pytest.mark.parametrize("mode", list(BodyMode))
@pytest.mark.parametrize("headers", [{**POST, "upgrade": "websocket"}, {**POST, ":method": "CONNECT"}])
def test_an_upgrade_is_routed_at_once_because_its_body_has_no_end(mode: BodyMode, headers: dict[str, str]) -> None:
    session = Session(Bench().exchange)
    assert session.receive(RequestHeaders(headers, request_body_mode=mode)) == [RouteTo(DESTINATION)]
    assert not session.collecting


def test_large_bodies_come_back_in_pieces_with_exactly_one_end_mark() -> None:
    """Field report 15: 300 KB in 16 KB chunks, pieces of at most 62,000 bytes, joined bytes equal."""
    body = bytes(range(256)) * 1200
    session = started(Bench())
    answers: list[Action] = []
    for at in range(0, len(body), 16_384):
        answers += session.receive(BodyChunk(body[at : at + 16_384]))
    answers += session.receive(BodyChunk(b"", end_of_stream=True))
    assert answers[0] == RouteTo(DESTINATION)
    pieces = [a for a in answers[1:] if isinstance(a, Piece)]
    assert len(pieces) == len(answers) - 1
    assert max(len(p.body) for p in pieces) <= 62_000
    assert b"".join(p.body for p in pieces) == body
    assert [p.end_of_stream for p in pieces] == [False] * (len(pieces) - 1) + [True]


def test_an_empty_body_is_answered_with_an_end_mark() -> None:
    session = started(Bench())
    assert session.receive(BodyChunk(b"", end_of_stream=True)) == [RouteTo(DESTINATION), Piece(Part.REQUEST_BODY, b"", True)]


def test_trailers_end_the_body_and_are_answered() -> None:
    session = started(Bench())
    session.receive(BodyChunk(JSON_BODY))
    assert session.receive(RequestTrailers()) == [
        RouteTo(DESTINATION),
        Piece(Part.REQUEST_BODY, JSON_BODY, False),
        Continue(Part.REQUEST_TRAILERS),
    ]


def test_anything_after_the_end_mark_is_ignored() -> None:
    bench = Bench()
    session = started(bench)
    session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    assert session.receive(BodyChunk(b"more", end_of_stream=True)) == []
    assert session.receive(RequestTrailers()) == []
    assert len(bench.picks) == 1


def test_bytes_out_are_bytes_in_whatever_the_json_looks_like() -> None:
    """Field report 24: 20-digit integers, duplicate keys, odd spacing, escaped unicode."""
    body = b'{ "model":"m","seed":12345678901234567890 , "a":1,"a":2,\n"messages":[{"content":"\\u00e9\\ud800"}]}'
    session = started(Bench())
    answers = session.receive(BodyChunk(body, end_of_stream=True))
    assert answers[1] == Piece(Part.REQUEST_BODY, body, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'{"model": 5}',
        b'{"model": "m", "prompt": [5, 6, 7]}',
        b'{"model": "m", "prompt": [[5], [6]]}',
        b'{"model": "m", "prompt": ["a", "b"]}',
        b'{"model": "m", "input": [{"role": "user", "content": "x"}]}',
        b'{"model": "m", "messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}',
        b"[" * 10_000,
        b'{"model": "\\ud800"}',
        b'{"model": "' + b"x" * 1_000_000 + b'"}',
        b'{"model": "m", "messages": [',
        b"\xff\xfe\x00\x01",
        b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n\x00\x01\r\n--x--",
    ],
)
def test_every_body_gets_a_pick_and_comes_back_unchanged(body: bytes) -> None:
    """Field reports 21, 22 and 71: all shapes route, bad ones by load."""
    session = started(Bench())
    answers = session.receive(BodyChunk(body, end_of_stream=True))
    assert answers[0] == RouteTo(DESTINATION)
    assert b"".join(a.body for a in answers[1:] if isinstance(a, Piece)) == body


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
def test_a_compressed_body_is_passed_on_untouched(encoding: str) -> None:
    """Field report 23: never a 400, also in strict mode."""
    bench = Bench(requests=RequestSettings(strict=True, models=("m",)))
    session = started(bench, headers={**POST, "content-encoding": encoding})
    body = b"\x1f\x8b" + bytes(500)
    assert session.receive(BodyChunk(body, end_of_stream=True)) == [RouteTo(DESTINATION), Piece(Part.REQUEST_BODY, body, True)]
    assert bench.observer.counts["not inspected: opaque"] == 1


def test_strict_mode_refuses_missing_and_unknown_models() -> None:
    """Field report 71: the strict option gives 400 and 404."""
    bench = Bench(requests=RequestSettings(strict=True, models=("m",)))
    assert code(started(bench).receive(BodyChunk(b"{}", end_of_stream=True))) == "bad_request"
    assert code(started(bench).receive(BodyChunk(b'{"model": "x"}', end_of_stream=True))) == "model_not_found"
    known = started(bench)
    assert RouteTo(DESTINATION) in known.receive(BodyChunk(b'{"model": "m"}', end_of_stream=True))
    known.drained()
    assert bench.budget.held_bytes == 0


def test_a_body_is_held_until_it_has_gone_out_again() -> None:
    """Field report 25: what waits for Envoy's windows counts like what waits for the end of the body."""
    bench = Bench()
    session = started(bench)
    session.receive(BodyChunk(bytes(1000)))
    session.drained()
    assert bench.budget.held_bytes == 1000
    session.receive(BodyChunk(bytes(500), end_of_stream=True))
    assert bench.budget.held_bytes == 1500
    session.drained()
    session.drained()
    assert bench.budget.held_bytes == 0


def test_a_body_over_the_limit_is_refused_as_soon_as_that_is_known() -> None:
    """Field report 25: a cap on each request gives 413 and frees what was held."""
    bench = Bench(max_body=100)
    session = started(bench)
    assert session.receive(BodyChunk(bytes(60))) == []
    assert code(session.receive(BodyChunk(bytes(60)))) == "body_too_large"
    assert session.refused
    assert session.receive(BodyChunk(b"more", end_of_stream=True)) == []
    assert bench.budget.held_bytes == 0
    assert bench.picks == []


@pytest.mark.parametrize("mode", [mode for mode in BodyMode if mode is not BodyMode.NONE])
def test_a_declared_length_over_the_limit_is_refused_before_the_body(mode: BodyMode) -> None:
    session = Session(Bench(max_body=100).exchange)
    headers = {**POST, "content-length": "101"}
    assert code(session.receive(RequestHeaders(headers, request_body_mode=mode))) == "body_too_large"


def test_a_buffered_body_over_the_limit_is_a_clean_413() -> None:
    """Field report 26: going over the limit is 413 with a reason, not 500."""
    session = started(Bench(max_body=100), request_body_mode=BodyMode.BUFFERED)
    assert code(session.receive(BodyChunk(bytes(101), end_of_stream=True))) == "body_too_large"


def test_beyond_the_buffers_of_all_streams_bodies_pass_through_and_are_picked_on_headers() -> None:
    """Field report 25: the global budget degrades to picks on headers, memory is flat."""
    bench = Bench(max_buffered=100)
    first, second = started(bench), started(bench)
    assert first.receive(BodyChunk(bytes(90))) == []
    answers = second.receive(BodyChunk(b"x" * 20))
    assert answers == [RouteTo(DESTINATION), Piece(Part.REQUEST_BODY, b"x" * 20, False)]
    assert second.receive(BodyChunk(b"y", end_of_stream=True)) == [Piece(Part.REQUEST_BODY, b"y", True)]
    assert bench.budget.held_bytes == 90
    assert bench.observer.counts["not inspected: buffers_full"] == 1
    first.end(cancelled=True)
    assert bench.budget.held_bytes == 0


def test_a_body_that_is_declared_too_long_for_the_buffers_is_picked_on_its_headers() -> None:
    bench = Bench(max_buffered=100)
    session = Session(bench.exchange)
    assert session.receive(RequestHeaders({**POST, "content-length": "101"})) == [RouteTo(DESTINATION)]


def test_a_body_whose_end_never_comes_is_given_up_and_its_memory_returns() -> None:
    """Field report 16."""
    bench = Bench()
    session = started(bench)
    assert session.collecting
    session.receive(BodyChunk(bytes(1000)))
    assert code(session.expire()) == "body_timeout"
    assert bench.budget.held_bytes == 0


def test_a_refused_pick_is_an_answer_with_a_reason() -> None:
    bench = Bench()
    bench.error = NoEndpointError("pool 'p' is empty")
    session = started(bench)
    actions = session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    assert code(actions) == "no_endpoints"
    session.end(cancelled=False)
    assert bench.observer.outcomes[0].error_code == "no_endpoints"


def test_a_bug_costs_this_request_only_and_is_logged_with_its_stack() -> None:
    bench = Bench()
    bench.error = ZeroDivisionError("secret prompt")
    session = started(bench)
    actions = session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    assert code(actions) == "internal"
    assert isinstance(actions[0], Refuse)
    assert "secret" not in str(actions[0].error)
    assert bench.bugs == ["bug_in_session"]
    bench.error = None
    assert RouteTo(DESTINATION) in started(bench).receive(BodyChunk(JSON_BODY, end_of_stream=True))


def test_headers_by_which_pickers_steer_are_taken_from_clients() -> None:
    session = Session(Bench().exchange)
    headers = {**POST, "x-prefiller-host-port": "evil:1", "x-gateway-destination-endpoint": "evil:1"}
    (action,) = session.receive(RequestHeaders(headers, end_of_stream=True))
    assert action == RouteTo(DESTINATION, Part.REQUEST_HEADERS, ("x-prefiller-host-port",))


def test_the_subset_goes_into_the_pick() -> None:
    bench = Bench()
    started(bench, end_of_stream=True, subset=frozenset({"10.0.0.2"}))
    assert bench.requests[0].subset == frozenset({"10.0.0.2"})


def routed(bench: Bench, **fields: object) -> Session:
    session = started(bench, **fields)
    session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    return session


def test_response_phases_are_passed_on_at_once() -> None:
    bench = Bench()
    session = routed(bench)
    assert session.receive(ResponseHeaders(OK)) == [Continue(Part.RESPONSE_HEADERS)]
    assert session.receive(ResponseChunk(b"abc")) == [Piece(Part.RESPONSE_BODY, b"abc", False)]
    assert session.receive(ResponseTrailers()) == [Continue(Part.RESPONSE_TRAILERS)]
    assert bench.picks[0].statuses == [200]


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_response_bodies_in_the_other_modes_are_waved_through(mode: BodyMode) -> None:
    session = started(Bench(), response_body_mode=mode)
    session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    session.receive(ResponseHeaders(OK))
    assert session.receive(ResponseChunk(bytes(1_000_000), end_of_stream=True)) == [Continue(Part.RESPONSE_BODY)]


def test_a_long_response_chunk_comes_back_in_pieces() -> None:
    session = routed(Bench())
    session.receive(ResponseHeaders(OK))
    answers = session.receive(ResponseChunk(bytes(150_000), end_of_stream=True))
    assert [len(a.body) for a in answers if isinstance(a, Piece)] == [62_000, 62_000, 26_000]
    assert [a.end_of_stream for a in answers if isinstance(a, Piece)] == [False, False, True]


def test_the_count_is_held_until_the_response_has_ended() -> None:
    """Field report 48: counted until the response ends, not until its headers."""
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders({**OK, "content-type": "text/event-stream"}))
    session.receive(ResponseChunk(b'data: {"choices": []}\n\n'))
    assert bench.picks[0].releases == 0
    session.receive(ResponseChunk(b"", end_of_stream=True))
    assert bench.picks[0].releases >= 1


def test_a_count_whose_response_did_not_end_is_given_back_as_cut() -> None:
    """However politely Envoy hangs up; a response that ended is none."""
    whole, cut = Bench(), Bench()
    for bench in (whole, cut):
        session = routed(bench)
        session.receive(ResponseHeaders({**OK, "content-type": "text/event-stream"}))
        session.receive(ResponseChunk(b"data: 1\n\n", end_of_stream=bench is whole))
        session.end(cancelled=False)
    assert (whole.picks[0].released_cut, cut.picks[0].released_cut) == (False, True)


def test_a_response_whose_end_marker_was_seen_is_a_success_whatever_comes_then() -> None:
    """Field report 74: the client resets 1 ms after [DONE]."""
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders({**OK, "content-type": "text/event-stream"}))
    session.receive(ResponseChunk(b"data: [DONE]\n\n"))
    assert bench.picks[0].releases >= 1
    session.end(cancelled=True)
    assert bench.observer.outcomes[0].cancelled is False


def test_a_reset_before_the_response_ended_is_told_as_cancelled() -> None:
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(OK))
    session.end(cancelled=True)
    assert bench.observer.outcomes[0].cancelled is True


@pytest.mark.parametrize(("mode", "cut"), [(mode, mode is not BodyMode.NONE) for mode in BodyMode])
def test_a_response_whose_end_envoy_never_told_was_cut_however_politely_it_hangs_up(mode: BodyMode, cut: bool) -> None:
    """Without a response body mode nobody can tell."""
    bench = Bench()
    session = Session(bench.exchange)
    session.receive(RequestHeaders(POST, end_of_stream=True, response_body_mode=mode))
    session.receive(ResponseHeaders(OK))
    session.receive(ResponseChunk(b"half an ans"))
    session.end(cancelled=False)
    assert bench.observer.outcomes[0].cancelled is cut


@pytest.mark.parametrize("status", ["²", "٣٣٣", "9" * 5000, ""])
def test_a_status_that_is_none_is_no_bug(status: str) -> None:
    bench = Bench()
    session = routed(bench)
    assert session.receive(ResponseHeaders({":status": status})) == [Continue(Part.RESPONSE_HEADERS)]
    assert bench.bugs == []


@pytest.mark.parametrize("events", range(6))
def test_the_count_is_taken_back_wherever_the_stream_ends(events: int) -> None:
    """Field report 46: after headers, mid-body, after the pick, mid-response, after an upstream error."""
    bench = Bench()
    session = Session(bench.exchange)
    history: list[Event] = [
        RequestHeaders(POST),
        BodyChunk(JSON_BODY[:5]),
        BodyChunk(JSON_BODY[5:], end_of_stream=True),
        ResponseHeaders({":status": "500"}),
        ResponseChunk(b"x"),
    ]
    for event in history[:events]:
        session.receive(event)
    session.end(cancelled=True)
    session.end(cancelled=True)
    assert all(pick.releases >= 1 for pick in bench.picks)
    assert bench.budget.held_bytes == 0
    assert bench.observer.counts["ended"] == 1


def test_usage_is_read_from_json_and_told_at_the_end() -> None:
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(OK))
    text = json.dumps({"usage": {"prompt_tokens": 10, "completion_tokens": 3}}).encode()
    for at in range(len(text)):
        session.receive(ResponseChunk(text[at : at + 1]))
    session.receive(ResponseChunk(b"", end_of_stream=True))
    session.end(cancelled=False)
    (outcome,) = bench.observer.outcomes
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (10, 3)
    assert (outcome.model, outcome.status, outcome.endpoint) == ("m", 200, DESTINATION)
    assert (outcome.request_bytes, outcome.response_bytes) == (len(JSON_BODY), len(text))


def test_who_really_served_is_believed() -> None:
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(OK, served="10.0.0.2:8000"))
    assert bench.picks[0].served == ["10.0.0.2:8000"]
    assert bench.observer.counts["served elsewhere"] == 1


def test_an_address_that_a_retry_reached_is_believed_and_the_metadata_win() -> None:
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(OK, origin=Origin.ENDPOINT, upstream="10.0.0.2:8000", attempts=2))
    session.end(cancelled=True)
    assert bench.picks[0].reached_after == [("10.0.0.2:8000", 2)]
    assert bench.observer.outcomes[0].endpoint == "10.0.0.2:8000"
    assert bench.observer.counts["served elsewhere"] == 0, "that is what the list is for"
    session = routed(bench)
    session.receive(ResponseHeaders(OK, served="10.0.0.3:8000", origin=Origin.ENDPOINT, upstream="10.0.0.2:8000"))
    assert (bench.picks[1].reached_after, bench.picks[1].served) == ([], ["10.0.0.3:8000"])
    session = routed(bench)
    session.receive(ResponseHeaders(OK, origin=Origin.ENDPOINT, upstream=DESTINATION))
    assert (bench.picks[2].reached_after, bench.picks[2].statuses) == ([], [200])


BY_ENVOY = {":status": "503", "content-type": "text/plain"}


@pytest.mark.parametrize(
    ("origin", "statuses", "lost"),
    [
        (Origin.REFUSED, [], ["refused a connection"]),
        (Origin.BROKEN, [], ["broke off a connection before it answered"]),
        (Origin.ENVOY, [], []),
        (Origin.ENDPOINT, [503], []),
    ],
)
def test_an_answer_of_envoy_is_not_taken_for_the_endpoints(origin: Origin, statuses: list[int], lost: list[str]) -> None:
    """Field report 13: a refused connection counts against the endpoint at once."""
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(BY_ENVOY, origin=origin, upstream=DESTINATION))
    session.receive(ResponseChunk(b"upstream connect error", end_of_stream=True))
    assert (bench.picks[0].statuses, bench.picks[0].lost) == (statuses, lost)
    assert bench.picks[0].releases


@pytest.mark.parametrize(
    ("text", "statuses", "lost"),
    [
        (b"upstream connect error or disconnect/reset before headers. reset reason: connection termination", [], 1),
        (b"no healthy upstream", [], 0),
        (b"loading model", [503], 0),
    ],
)
def test_where_envoy_does_not_say_who_answered_the_text_tells(text: bytes, statuses: list[int], lost: int) -> None:
    bench = Bench()
    session = routed(bench)
    session.receive(ResponseHeaders(BY_ENVOY))
    assert bench.picks[0].statuses == []
    session.receive(ResponseChunk(text, end_of_stream=True))
    assert (bench.picks[0].statuses, len(bench.picks[0].lost)) == (statuses, lost)


def test_a_status_that_nobody_can_doubt_counts_with_the_headers() -> None:
    bench = Bench()
    for headers in ({":status": "500", "content-type": "text/plain"}, {":status": "503", "content-type": "application/json"}):
        routed(bench).receive(ResponseHeaders(headers))
    routed(bench, response_body_mode=BodyMode.NONE).receive(ResponseHeaders(BY_ENVOY))
    routed(bench).receive(ResponseHeaders(BY_ENVOY, end_of_stream=True))
    assert [pick.statuses for pick in bench.picks] == [[500], [503], [503], [503]]


@pytest.mark.parametrize(
    ("status", "mode", "cancelled", "cuts"),
    [
        ("200", BodyMode.FULL_DUPLEX_STREAMED, False, 1),
        ("200", BodyMode.FULL_DUPLEX_STREAMED, True, 0),  # Envoy died, or its connection to us
        ("200", BodyMode.NONE, False, 0),  # nobody tells the end
        ("101", BodyMode.FULL_DUPLEX_STREAMED, False, 0),  # an upgraded connection ends without an end
    ],
)
def test_an_answer_that_ends_in_the_middle_is_told(status: str, mode: BodyMode, cancelled: bool, cuts: int) -> None:
    bench = Bench()
    session = routed(bench, response_body_mode=mode)
    session.receive(ResponseHeaders({**OK, ":status": status}))
    session.end(cancelled=cancelled)
    session.end(cancelled=cancelled)
    assert bench.picks[0].cuts == cuts
    assert bench.picks[0].releases


def test_who_goes_before_an_answer_began_is_nobodys_fault() -> None:
    bench = Bench()
    routed(bench).end(cancelled=False)
    assert (bench.picks[0].cuts, bench.picks[0].lost, bench.picks[0].statuses) == (0, [], [])


def test_a_pick_knows_how_many_endpoints_it_may_name_and_how_large_the_body_is() -> None:
    bench = Bench(max_body=4_000_000)
    session = Session(bench.exchange, endpoints_named=3)
    session.receive(RequestHeaders(POST))
    session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    streamed = Session(bench.exchange)
    streamed.receive(RequestHeaders({**POST, "content-length": "3000000"}, request_body_mode=BodyMode.NONE))
    assert [(r.endpoints_named, r.body_bytes) for r in bench.requests] == [(3, len(JSON_BODY)), (1, 3_000_000)]


def test_an_answer_of_envoy_itself_while_the_body_is_still_coming_frees_the_buffer() -> None:
    bench = Bench()
    session = started(bench)
    session.receive(BodyChunk(bytes(1000)))
    assert session.receive(ResponseHeaders({":status": "408"})) == [Continue(Part.RESPONSE_HEADERS)]
    assert bench.budget.held_bytes == 0
    assert session.receive(BodyChunk(bytes(1000), end_of_stream=True)) == []
    assert bench.picks == []


def test_a_request_without_an_id_gets_one() -> None:
    bench = Bench()
    started(bench, end_of_stream=True)
    started(bench, headers={**POST, "x-request-id": "abc"}, end_of_stream=True)
    assert [r.request_id for r in bench.requests] == ["epp-1", "abc"]


def test_the_error_of_a_too_large_body_names_size_and_limit() -> None:
    session = Session(Bench(max_body=100).exchange)
    (action,) = session.receive(RequestHeaders({**POST, "content-length": "101"}))
    assert isinstance(action, Refuse)
    assert isinstance(action.error, BodyTooLargeError)
    assert str(action.error) == "the request body has 101 bytes or more; the limit is 100"


@pytest.mark.parametrize(
    ("named", "priority"),
    [
        ({}, 0),
        ({"x-gateway-inference-objective": "batch"}, -10),
        ({"x-llm-d-inference-objective": "premium"}, 100),
        ({"x-llm-d-inference-objective": "premium", "x-gateway-inference-objective": "batch"}, 100),
        ({"x-gateway-inference-objective": "unheard-of"}, 0),
    ],
)
def test_the_objective_that_the_client_names_gives_the_request_its_priority(named: dict[str, str], priority: int) -> None:
    bench = Bench()
    bench.objectives.replace({"premium": 100, "batch": -10})
    session = started(bench, headers={**POST, **named})
    session.receive(BodyChunk(JSON_BODY, end_of_stream=True))
    session.end(cancelled=False)
    assert bench.requests[0].priority == bench.observer.outcomes[0].priority == priority


def test_a_request_without_a_body_has_a_priority_too() -> None:
    bench = Bench()
    bench.objectives.replace({"batch": -10})
    started(bench, headers={"x-gateway-inference-objective": "batch"}, end_of_stream=True)
    assert bench.requests[0].priority == -10


def test_objectives_are_found_in_the_bytes_of_the_headers() -> None:
    names = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
    values = [HeaderValue(key=name, raw_value=name[2:5].encode()) for name in names]
    path = HeaderValue(key=":path", raw_value=b"/")
    for present, objective in (([], None), (values[:1], "llm"), (values[1:], "gat"), (values[::-1], "llm")):
        headers = HttpHeaders(headers=HeaderMap(headers=[path, *present]))
        event = decode(ProcessingRequest(request_headers=headers).SerializeToString())
        assert isinstance(event, RequestHeaders)
        assert isinstance(event.headers, RawHeaders)
        assert objective_name(event.headers) == objective
