"""The ext_proc session: one gRPC stream, one HTTP request. No I/O: events in, actions out, synchronous.

How the pick reaches Envoy depends on how Envoy hands over the request body (ext_proc's processing modes):

| body mode | Envoy waits for | the pick is in the reply to |
|---|---|---|
| no body, NONE, STREAMED | the reply to the headers; they are gone then | the headers; by load |
| BUFFERED, BUFFERED_PARTIAL | the reply to the headers; holds them and sends the body | the body |
| FULL_DUPLEX_STREAMED | nothing; sends all, takes replies in order | the headers, when the body has ended |

Where rules may give the request another model, the body comes back changed: in the reply to it (BUFFERED,
BUFFERED_PARTIAL), in pieces (FULL_DUPLEX_STREAMED), or, in STREAMED, whole in the reply to its last chunk, while the chunks
before are taken away. STREAMED needs a `content-length` for that, or the body in one chunk: where trailers follow, no chunk
is marked as the last, and the reply to trailers cannot bring a body.

Envoy 1.40 drops the request's `content-length` in STREAMED, BUFFERED_PARTIAL and FULL_DUPLEX_STREAMED, whatever the reply
says; in BUFFERED it keeps it, and answers 500 where it does not match the new body. So the reply says what is right wherever
it still can and the client sent one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from epp.errors import (
    BadRequestError,
    BodyTimeoutError,
    BodyTooLargeError,
    InternalError,
    ModelNotFoundError,
    PickError,
)
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
from epp.extproc.exchange import Exchange, SessionPick
from epp.extproc.names import MAX_PIECE_BYTES, OBJECTIVE_HEADERS, OBJECTIVE_MARK, PICKER_ONLY_HEADERS, PICKER_ONLY_MARKS
from epp.extproc.raw_message import RawHeaders
from epp.extproc.request_body import read_request_body
from epp.extproc.rewriting import STREAMED_WITHOUT_LENGTH, give_up, may_be_rewritten, rewritten
from epp.extproc.upstream_errors import DOUBTFUL_STATUSES, Origin, origin_of_body
from epp.extproc.usage import UsageReader
from epp.scheduling.request import InferenceRequest
from epp.telemetry.outcome import RequestOutcome

MAX_REQUEST_ID_CHARS = 128
"""Longer ids of clients are cut: they are kept for `/api/v1/picks`."""
NO_LIMIT_BYTES = 1 << 62
GO_ON_REQUEST_HEADERS = Continue(Part.REQUEST_HEADERS)
GO_ON_REQUEST_BODY = Continue(Part.REQUEST_BODY)
GO_ON_REQUEST_TRAILERS = Continue(Part.REQUEST_TRAILERS)
GO_ON_RESPONSE_HEADERS = Continue(Part.RESPONSE_HEADERS)
GO_ON_RESPONSE_BODY = Continue(Part.RESPONSE_BODY)
GO_ON_RESPONSE_TRAILERS = Continue(Part.RESPONSE_TRAILERS)
TAKE_AWAY = NewBody(Part.REQUEST_BODY, b"")
NO_HEADERS: Mapping[str, str] = {}


def pieces(part: Part, body: bytes | memoryview, *, end_of_stream: bool) -> list[Action]:
    """`body` in pieces that Envoy accepts, the end mark on the last; nothing for an empty body without an end.

    The pieces of a long body are views of it, not copies.
    """
    if len(body) <= MAX_PIECE_BYTES:
        return [Piece(part, body, end_of_stream)] if body or end_of_stream else []
    view = memoryview(body)
    last = (len(body) - 1) // MAX_PIECE_BYTES * MAX_PIECE_BYTES
    found: list[Action] = [Piece(part, view[at : at + MAX_PIECE_BYTES], False) for at in range(0, last, MAX_PIECE_BYTES)]
    found.append(Piece(part, view[last:], end_of_stream))
    return found


class Session:
    """The state of one exchange with Envoy.

    The owner calls `receive` with each event and sends the actions in order; a `Refuse` is the last one and ends the call.
    Then, or when the stream ends in whatever way, it calls `end` once, which takes back the count and the held bytes.

    Attributes:
        refused: A `Refuse` was given; the call is over.
        collecting: The session holds the body back until it has ended: `expire` ends that wait.
    """

    __slots__ = (
        "_body_mode",
        "_chunks",
        "_complete",
        "_doubtful",
        "_endpoints_named",
        "_exchange",
        "_headers",
        "_held_bytes",
        "_limit_bytes",
        "_pick",
        "_request_ended",
        "_response_mode",
        "_subset",
        "_usage",
        "collecting",
        "outcome",
        "refused",
        "request_id",
    )

    def __init__(self, exchange: Exchange, endpoints_named: int = 1) -> None:
        """`endpoints_named` is how many endpoints this Envoy can try one after the other."""
        self._exchange = exchange
        self._endpoints_named = endpoints_named
        self._headers = NO_HEADERS
        self._body_mode = self._response_mode = BodyMode.FULL_DUPLEX_STREAMED
        self._subset: frozenset[str] | None = None
        self._chunks: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._limit_bytes = exchange.limits.max_request_body_bytes
        self._request_ended = False
        self._complete = False
        self._doubtful = False  # the answer may be Envoy's own: its first bytes will tell
        self._pick: SessionPick | None = None
        self._usage: UsageReader | None = None
        self.collecting = False
        self.refused = False
        self.request_id = ""
        self.outcome = RequestOutcome(started_at_s=exchange.clock.monotonic_s())

    # ── the owner's side ──

    def receive(self, event: Event) -> list[Action]:
        """Take in what Envoy says; the answers are in the order in which they must be sent."""
        if self.refused:
            return []
        try:
            return _HANDLERS[type(event)](self, event)
        except PickError as error:
            return [self._refuse(error)]
        except Exception:  # noqa: BLE001 — a bug must cost this request only
            self._exchange.bugs.exception("bug_in_session", request_id=self.request_id, at=type(event).__name__)
            return [self._refuse(InternalError("internal error of the endpoint picker"))]

    def expire(self) -> list[Action]:
        """Nothing came for `limits.requestBodyTimeout`; an answer only if the session is `collecting`."""
        if not self.collecting:
            return []
        wait_s = self._exchange.limits.request_body_timeout_s
        held = self.outcome.request_bytes
        return [self._refuse(BodyTimeoutError(f"the request body stopped after {held} bytes; waited {wait_s:g} s for more"))]

    def drained(self) -> None:
        """All that was answered has gone out: the body is not held any more. May be called again and again."""
        if not self.collecting:
            self._give_back()

    def end(self, *, cancelled: bool) -> None:
        """The stream is over; `cancelled` if Envoy reset it. Further calls do nothing."""
        outcome = self.outcome
        if outcome.ended_at_s is not None:
            return
        if self._pick is not None and not (cancelled or self._complete) and self._sees_the_end and (outcome.status or 0) >= 200:
            self._pick.cut()  # Envoy hangs up politely where the endpoint or the client was gone
        cut = not self._complete and (cancelled or self._sees_the_end)
        self._let_go(cut=cut)
        outcome.ended_at_s = self._exchange.clock.monotonic_s()
        outcome.cancelled = cut
        usage = None if self._usage is None else self._usage.usage
        if usage is not None:
            outcome.prompt_tokens = usage.prompt_tokens
            outcome.completion_tokens = usage.completion_tokens
            outcome.cached_tokens = usage.cached_tokens
        self._exchange.observer.request_ended(outcome)

    @property
    def _sees_the_end(self) -> bool:
        """Whether Envoy would have told the end of the response, had there been one: it hangs up as politely on a cut one."""
        return self._response_mode is not BodyMode.NONE and not self.refused

    # ── request ──

    def _on_request_headers(self, event: RequestHeaders) -> list[Action]:
        if self._pick is not None or self._headers is not NO_HEADERS:  # only the first message counts
            return []
        headers = self._headers = event.headers
        self._body_mode = mode = event.request_body_mode
        self._response_mode = event.response_body_mode
        self._subset = event.subset
        self.request_id = headers.get("x-request-id", "")[:MAX_REQUEST_ID_CHARS] or self._exchange.next_request_id()
        objectives = self._exchange.objectives
        if objectives is not None:
            self.outcome.priority = objectives.priority(objective_name(headers))
        if event.end_of_stream:
            self._request_ended = True
            return [self._route(Part.REQUEST_HEADERS)]
        declared_bytes = _declared_bytes(headers)
        if declared_bytes > self._exchange.limits.max_request_body_bytes:
            raise self._too_large(declared_bytes)
        if "upgrade" in headers or headers.get(":method") == "CONNECT":  # no end to wait for, and no limit
            self._limit_bytes = NO_LIMIT_BYTES
            return [self._route(Part.REQUEST_HEADERS)]
        if mode is BodyMode.FULL_DUPLEX_STREAMED:
            self.collecting = self._has_room(declared_bytes)
            if self.collecting:
                return []
        elif mode in _HEADERS_ARE_HELD:
            return [GO_ON_REQUEST_HEADERS]
        elif mode is BodyMode.STREAMED and self._exchange.rewrites.active and may_be_rewritten(headers):
            routed: list[Action] = [self._route(Part.REQUEST_HEADERS)]
            self.collecting = self._has_room(declared_bytes)
            return routed
        return [self._route(Part.REQUEST_HEADERS)]

    def _has_room(self, size_bytes: int) -> bool:
        """Whether the buffers have room for the body that is to come."""
        budget = self._exchange.budget
        if budget.held_bytes + size_bytes <= budget.limit_bytes:
            return True
        self._exchange.observer.body_not_inspected("buffers_full")
        return False

    def _on_body(self, event: BodyChunk) -> list[Action]:
        if self._request_ended:
            return []
        self._request_ended = event.end_of_stream
        outcome = self.outcome
        outcome.request_bytes += len(event.body)
        if outcome.request_bytes > self._limit_bytes:
            raise self._too_large(outcome.request_bytes)
        if self.collecting:
            return self._collect(event) if self._pick is None else self._hold_back(event)
        if self._pick is None:  # BUFFERED or BUFFERED_PARTIAL: this is all of the body that will come
            partial = self._body_mode is BodyMode.BUFFERED_PARTIAL and not event.end_of_stream
            changed = self._read_body(event.body, partial=partial)
            route = self._route(Part.REQUEST_BODY)
            if changed is not None:
                route.body = changed
                route.content_length = self._changed_length(len(changed) - len(event.body))
            return [route]
        if self._body_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return pieces(Part.REQUEST_BODY, event.body, end_of_stream=event.end_of_stream)
        return [GO_ON_REQUEST_BODY]

    def _on_request_trailers(self, _: RequestTrailers) -> list[Action]:
        if self._request_ended:
            return []
        self._request_ended = True
        if self._pick is None and not self.collecting:
            raise BadRequestError("a request with trailers and without a body cannot be routed in a BUFFERED body mode")
        if self._pick is not None:
            if any(self._chunks):
                raise BadRequestError("the request body is shorter than its content-length")
            self.collecting = False
        answers = self._finish_collecting(end_of_stream=False) if self.collecting else []
        answers.append(GO_ON_REQUEST_TRAILERS)
        return answers

    def _collect(self, event: BodyChunk) -> list[Action]:
        body = event.body
        if not self._exchange.budget.take(len(body)):
            self._exchange.observer.body_not_inspected("buffers_full")
            self._chunks.append(body)
            return self._stop_collecting(b"".join(self._chunks), end_of_stream=event.end_of_stream)
        self._held_bytes += len(body)
        if body:
            self._chunks.append(body)
        return self._finish_collecting(end_of_stream=True) if event.end_of_stream else []

    def _finish_collecting(self, *, end_of_stream: bool) -> list[Action]:
        # Copies of a long body on the socket transport, beside the kernel's: out of what was read into its messages (twice
        # where a message spans frames), joined here once, out of views of the joined bytes into the messages that go
        # back, and once more behind their length. A short body in one chunk is not joined.
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        changed = self._read_body(body)
        if changed is None:
            return self._stop_collecting(body, end_of_stream=end_of_stream)
        return self._stop_collecting(changed, end_of_stream=end_of_stream, growth_bytes=len(changed) - len(body))

    def _stop_collecting(
        self, body: bytes | memoryview, *, end_of_stream: bool, growth_bytes: int | None = None
    ) -> list[Action]:
        route = self._route(Part.REQUEST_HEADERS)
        if growth_bytes is not None:
            route.content_length = self._changed_length(growth_bytes)
        self.collecting = False
        self._chunks = []
        return [route, *pieces(Part.REQUEST_BODY, body, end_of_stream=end_of_stream)]

    def _hold_back(self, event: BodyChunk) -> list[Action]:
        """A chunk in STREAMED, of a body that may have to change: take it away, and give all back in place of the last."""
        declared_bytes = _declared_bytes(self._headers)
        ended = event.end_of_stream or 0 < declared_bytes <= self.outcome.request_bytes
        if not ended and not declared_bytes:
            self.collecting = False
            give_up(self._exchange, STREAMED_WITHOUT_LENGTH)
            return [GO_ON_REQUEST_BODY]
        self._chunks.append(event.body)
        if not self._exchange.budget.take(len(event.body)):
            self._exchange.observer.body_not_inspected("buffers_full")
            return [self._put_back(None)]
        self._held_bytes += len(event.body)
        return [self._put_back(self._read_body(b"".join(self._chunks))) if ended else TAKE_AWAY]

    def _put_back(self, changed: bytes | None) -> Action:
        chunks, self._chunks = self._chunks, []
        self.collecting = False
        if changed is None and len(chunks) == 1:
            return GO_ON_REQUEST_BODY
        return NewBody(Part.REQUEST_BODY, b"".join(chunks) if changed is None else changed)

    def _changed_length(self, growth_bytes: int) -> int | None:
        """What `content-length` must say; None where the client did not say it."""
        declared_bytes = _declared_bytes(self._headers)
        return declared_bytes + growth_bytes if declared_bytes else None

    def _read_body(self, body: bytes | memoryview, *, partial: bool = False) -> bytes | None:
        """Learn what the body asks for; the body that must go on in its place, None when it stays as it is."""
        headers, exchange = self._headers, self._exchange
        exchange.observer.body_read(exchange.clock.monotonic_s() - self.outcome.started_at_s)
        whole = bytes(body)
        read = read_request_body(headers.get(":path", ""), headers.get("content-type"), headers.get("content-encoding"), whole)
        outcome = self.outcome
        outcome.model = read.model or ""
        outcome.streaming = read.stream
        changed = rewritten(exchange, outcome, read, whole, partial=partial) if exchange.rewrites.active else None
        if read.opaque:
            exchange.observer.body_not_inspected("opaque")
        elif exchange.requests.strict and not outcome.target_model:
            _check_model(outcome.model or None, exchange.requests.models)
        return changed

    def _route(self, part: Part) -> RouteTo:
        outcome, headers = self.outcome, self._headers
        request = InferenceRequest(
            request_id=self.request_id,
            headers=headers,
            model=outcome.model or None,
            priority=outcome.priority,
            subset=self._subset,
            endpoints_named=self._endpoints_named,
            body_bytes=outcome.request_bytes or _declared_bytes(headers),
        )
        if outcome.target_model:
            request.model, request.client_model = outcome.target_model, outcome.model
        pick = self._pick = self._exchange.pick(request)
        outcome.endpoint = pick.choice
        outcome.picked_at_s = self._exchange.clock.monotonic_s()
        self._exchange.observer.request_began(outcome)
        return RouteTo(pick.destination, part, picker_only_headers(headers))

    # ── response ──

    def _on_response_headers(self, event: ResponseHeaders) -> list[Action]:
        outcome, pick, headers = self.outcome, self._pick, event.headers
        if self.collecting and pick is None:  # Envoy answers in the model server's place while the body is still coming
            self._drop_body()
            self._request_ended = True
        status = headers.get(":status", "")
        outcome.status = int(status) if len(status) == 3 and status.isascii() and status.isdigit() else None
        if pick is not None:
            self._note_who_answered(event, pick)
        if event.end_of_stream:
            self._response_ended()
        else:
            self._usage = UsageReader(headers.get("content-type"), headers.get("content-encoding"))
        return [GO_ON_RESPONSE_HEADERS]

    def _note_who_answered(self, event: ResponseHeaders, pick: SessionPick) -> None:
        outcome, upstream, origin = self.outcome, event.upstream, event.origin
        if event.served:
            if pick.served_by(event.served):
                outcome.endpoint = event.served
                self._exchange.observer.served_elsewhere()
        elif upstream is not None and upstream != pick.choice and pick.reached(upstream, event.attempts):
            outcome.endpoint = upstream
            if event.attempts == 1:  # a second try is what the list is for
                self._exchange.observer.served_elsewhere()
        status = outcome.status
        if origin.is_lost_connection:
            pick.lost_connection(origin.value)
        elif origin is Origin.UNKNOWN and status in DOUBTFUL_STATUSES and self._will_show_text(event):
            self._doubtful = True
        elif status is not None and origin is not Origin.ENVOY:
            pick.answered(status)

    def _will_show_text(self, event: ResponseHeaders) -> bool:
        plain = (event.headers.get("content-type") or "").startswith("text/plain")
        return plain and not event.end_of_stream and self._response_mode is not BodyMode.NONE

    def _settle_doubt(self, beginning: bytes) -> None:
        self._doubtful = False
        origin, status = origin_of_body(beginning), self.outcome.status
        if self._pick is None or status is None:
            return
        if origin.is_lost_connection:
            self._pick.lost_connection(origin.value)
        elif origin is not Origin.ENVOY:
            self._pick.answered(status)

    def _on_response_chunk(self, event: ResponseChunk) -> list[Action]:
        outcome = self.outcome
        if event.body and not outcome.response_bytes:
            outcome.first_byte_at_s = self._exchange.clock.monotonic_s()
        outcome.response_bytes += len(event.body)
        if self._doubtful:
            self._settle_doubt(event.body)
        if self._pick is not None:
            self._pick.progressed()
        usage = self._usage
        if usage is not None:
            usage.feed(event.body, event.end_of_stream)
            if usage.ended or event.end_of_stream:
                self._response_ended()
        if self._response_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return pieces(Part.RESPONSE_BODY, event.body, end_of_stream=event.end_of_stream)
        return [GO_ON_RESPONSE_BODY]

    def _on_response_trailers(self, _: ResponseTrailers) -> list[Action]:
        self._response_ended()
        return [GO_ON_RESPONSE_TRAILERS]

    def _response_ended(self) -> None:
        self._complete = True
        if self._pick is not None:
            self._pick.release()

    # ── endings ──

    def _too_large(self, size_bytes: int) -> BodyTooLargeError:
        limit = self._exchange.limits.max_request_body_bytes
        return BodyTooLargeError(f"the request body has {size_bytes} bytes or more; the limit is {limit}")

    def _refuse(self, error: PickError) -> Refuse:
        self.refused = True
        self.outcome.error_code = error.code
        self.outcome.status = int(error.status)
        self._let_go()
        return Refuse(error)

    def _drop_body(self) -> None:
        self.collecting = False
        self._chunks = []
        self._give_back()

    def _give_back(self) -> None:
        if self._held_bytes:
            self._exchange.budget.give_back(self._held_bytes)
            self._held_bytes = 0

    def _let_go(self, *, cut: bool = False) -> None:
        self._drop_body()
        if self._pick is not None:
            self._pick.release(cut=cut)


_HEADERS_ARE_HELD = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})

_HANDLERS: dict[type, Callable[[Session, Any], list[Action]]] = {
    RequestHeaders: Session._on_request_headers,  # noqa: SLF001
    BodyChunk: Session._on_body,  # noqa: SLF001
    RequestTrailers: Session._on_request_trailers,  # noqa: SLF001
    ResponseHeaders: Session._on_response_headers,  # noqa: SLF001
    ResponseChunk: Session._on_response_chunk,  # noqa: SLF001
    ResponseTrailers: Session._on_response_trailers,  # noqa: SLF001
}


def _declared_bytes(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length")
    return int(text) if text and len(text) < 19 and text.isascii() and text.isdigit() else 0


def objective_name(headers: Mapping[str, str]) -> str | None:
    """The objective that the client names."""
    if isinstance(headers, RawHeaders) and not headers.mentions(OBJECTIVE_MARK):
        return None
    current, older = OBJECTIVE_HEADERS
    return headers.get(current) or headers.get(older)


def picker_only_headers(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Headers of the client by which only a picker may steer model servers."""
    if isinstance(headers, RawHeaders) and not headers.mention(PICKER_ONLY_MARKS):
        return ()
    return tuple(name for name in PICKER_ONLY_HEADERS if name in headers)


def _check_model(model: str | None, models: tuple[str, ...]) -> None:
    if model is None:
        raise BadRequestError("requests.strict: expected a JSON body that names a model, found none")
    if model not in models:
        raise ModelNotFoundError(f"model {model[:100]!r} is not served here; known: {', '.join(models) or 'none'}")
