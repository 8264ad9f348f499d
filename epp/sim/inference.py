"""Requests for inference over HTTP: read, submitted, answered whole or as a stream."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from aiohttp import web

from epp.clock import Clock
from epp.sim.api.exchange import Exchange, Format, data_event
from epp.sim.api.messages import MessagesFormat
from epp.sim.api.openai import DONE, ChatFormat, CompletionFormat, EmbeddingsFormat
from epp.sim.api.prompts import BadRequestError
from epp.sim.api.request import (
    Reader,
    read_body,
    read_chat,
    read_completion,
    read_embeddings,
    read_messages,
    read_responses,
)
from epp.sim.api.responses import ResponsesFormat
from epp.sim.assembly import Assembler, UnknownModelError
from epp.sim.driver import AbortedError, EngineDriver, Generation
from epp.sim.engines.base import Engine, Reply
from epp.sim.job import JobPhase
from epp.sim.limits import ContextLengthError, QueueFullError

LOAD_FORMAT_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of an API: how its requests are read and its answers written."""

    reader: Reader
    make_format: Callable[[Exchange], Format]


def respond(reply: Reply) -> web.Response:
    """A reply as aiohttp wants it."""
    headers = {"content-type": reply.content_type, **reply.headers}
    return web.Response(status=reply.status, body=reply.body, headers=headers)


class Inference:
    """The handlers of the inference paths.

    Attributes:
        completed_requests: Requests answered in full.
    """

    def __init__(
        self, *, engine: Engine, driver: EngineDriver, assembler: Assembler, clock: Clock, name: Callable[[], str]
    ) -> None:
        self._engine = engine
        self._driver = driver
        self._assembler = assembler
        self._clock = clock
        self._name = name
        self._load_lock = asyncio.Lock()
        self.completed_requests = 0
        self.routes: Mapping[str, Route] = {
            "/v1/chat/completions": Route(read_chat, ChatFormat),
            "/v1/completions": Route(read_completion, CompletionFormat),
            "/v1/embeddings": Route(read_embeddings, lambda exchange: EmbeddingsFormat(exchange, assembler.writer)),
            "/v1/responses": Route(read_responses, ResponsesFormat),
            "/v1/messages": Route(read_messages, MessagesFormat),
        }

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a POST to one of `routes`."""
        route = self.routes[request.path]
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return respond(self._engine.error(413, "The request body is too large.", "BadRequestError"))
        await self._load_model()
        try:
            api_request = read_body(body, route.reader)
            exchange = self._assembler.assemble(api_request, created=int(self._clock.wall_s()))
            streaming = api_request.stream and api_request.limits is not None
            generation = self._driver.submit((choice.job for choice in exchange.choices), streaming=streaming)
        except BadRequestError as error:
            return respond(self._engine.error(400, str(error), "BadRequestError", error.param))
        except UnknownModelError as error:
            return respond(self._engine.unknown_model(error.model))
        except ContextLengthError as error:
            message = (
                f"This model's maximum context length is {error.limit_tokens} tokens. However, you requested "
                f"{error.needed_tokens} tokens."
            )
            return respond(self._engine.error(400, message, "BadRequestError"))
        except QueueFullError:
            return respond(self._engine.queue_full())
        try:
            written = route.make_format(exchange)
            if streaming:
                return await self._stream(request, generation, written)
            return await self._whole(request, generation, written)
        finally:
            self._driver.forget(generation)
            self._engine.used(self._clock.wall_s())

    async def _load_model(self) -> None:
        if not self._engine.traits.loads_at_first_request or self._engine.config.startup_delay_s == 0:
            self._engine.used(self._clock.wall_s())
            return
        async with self._load_lock:
            if not self._engine.loaded(self._clock.wall_s()):
                await asyncio.sleep(self._engine.config.startup_delay_s)
            self._engine.used(self._clock.wall_s())

    async def _whole(self, request: web.BaseRequest, generation: Generation, written: Format) -> web.Response:
        try:
            while not generation.finished:
                await generation.change()
        except AbortedError:
            return respond(self._aborted())
        self.completed_requests += 1
        body = msgspec.json.encode(written.whole())
        headers = {"content-type": "application/json", **self._engine.answer_headers(generation.jobs[0].times())}
        headers.update(self._load_report(request))
        return web.Response(body=body, headers=headers)

    def _aborted(self) -> Reply:
        return self._engine.error(500, "Internal server error", "InternalServerError")

    def _load_report(self, request: web.BaseRequest) -> Mapping[str, str]:
        wanted = request.headers.get(LOAD_FORMAT_HEADER, "").lower()
        if not self._engine.traits.load_headers or wanted not in {"text", "json"}:
            return {}
        named = self._engine.load_headers(self._driver.state())
        if wanted == "json":
            return {LOAD_HEADER: "JSON " + msgspec.json.encode({"named_metrics": named}).decode()}
        return {LOAD_HEADER: "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())}

    async def _stream(self, request: web.BaseRequest, generation: Generation, written: Format) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-sim-name": self._name()})
        if not self._engine.traits.headers_at_first_token:
            await response.prepare(request)
        stream = _StreamState(written, self._driver)
        try:
            while True:
                await generation.change()
                if generation.finished:
                    break
                piece = stream.piece()
                if piece:
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(piece)
        except AbortedError:
            if not response.prepared:
                return respond(self._aborted())
            with suppress(ConnectionError):
                await response.write(data_event(msgspec.Raw(self._aborted().body)) + DONE)
                await response.write_eof()
            return response
        if not response.prepared:
            await response.prepare(request)
        self.completed_requests += 1
        await response.write(stream.rest())
        await response.write_eof()
        return response


class _StreamState:
    """How much of each choice was sent."""

    def __init__(self, written: Format, driver: EngineDriver) -> None:
        self._written = written
        self._driver = driver
        self._sent = [0] * len(written.exchange.choices)
        self._closed: set[int] = set()
        self._opened = False

    def piece(self) -> bytes:
        """Everything that became ready since the last call."""
        parts: list[bytes] = []
        for choice in self._written.exchange.choices:
            if choice.index in self._closed:
                continue
            job = choice.job
            sent, ready = self._sent[choice.index], self._driver.ready_tokens(job)
            if ready > sent:
                if not self._opened:
                    self._opened = True
                    parts.append(self._written.opening())
                parts.append(self._written.tokens(choice, choice.answer.tokens[sent:ready]))
                self._sent[choice.index] = ready
            if job.phase is JobPhase.FINISHED:
                self._closed.add(choice.index)
                parts.append(self._written.closing(choice))
        return b"".join(parts)

    def rest(self) -> bytes:
        """What is left once everything is finished."""
        return self.piece() + self._written.ending()
