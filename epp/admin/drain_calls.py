"""`drain`, `undrain` and `drained` of one endpoint, and what drains are known.

| call | does |
|---|---|
| `POST /api/v1/endpoints/{ip:port}/drain?keep=10m` | stops picks there at once; the mark ends `keep` after the last such call |
| `POST /api/v1/endpoints/{ip:port}/undrain` | lifts the mark |
| `GET /api/v1/endpoints/{ip:port}/drained?timeout=30s` | waits until nothing runs there: 200, or 202 with the count |
| `GET /api/v1/drains` | the marks in force, and what was measured of the last drains |

Each call is passed on to the other replicas, which take it as their own and do not pass it on again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from epp.admin.answers import error_answer, json_answer
from epp.admin.callers import FORWARDED, UNKNOWN_ENDPOINT, Callers, NotAllowedError, bearer, source_ip
from epp.admin.long_polls import LongPolls
from epp.clock import Clock
from epp.config import kinds
from epp.config.kinds import Kind
from epp.config.wording import quote
from epp.errors import ConfigError
from epp.pool.drain_marks import DrainMark
from epp.pool.endpoint import Endpoint, EndpointAddress, endpoint_address
from epp.pool.state import PoolState

MAX_TIMEOUT_S = 60.0
DEFAULT_TIMEOUT_S = 30.0
PEERS_ASKED_AGAIN_AFTER_S = 0.5
"""When a peer says at once that it is not idle (it has no place for one more that waits) or says nothing."""
MAX_PASSED_ON = 64
"""Calls at once, as many as the port has connections. Callers that hang up and call again may be more; they call again."""
KEEP = kinds.duration(minimum_s=0.001)
MAX_KEEP_S = 366 * 86_400.0
"""Who wants it for longer wants it for good."""


class PeerAnswers(Protocol):
    """What the other replicas say of an endpoint (`epp.admin.peers`).

    Attributes:
        in_flight_requests: Over all of them, as far as they told.
        idle: Nothing runs there on any of them.
    """

    @property
    def in_flight_requests(self) -> int: ...

    @property
    def idle(self) -> bool: ...

    def as_json(self) -> Mapping[str, Any]: ...


class Peers(Protocol):
    """The other replicas."""

    @property
    def instance(self) -> str:
        """Names this replica."""
        ...

    def has_address(self, ip: str) -> bool: ...

    async def call(self, action: str, endpoint: EndpointAddress, query: Mapping[str, str]) -> PeerAnswers:
        """Pass `drain` or `undrain` on to all of them at once; never raises for what a network can do."""
        ...

    async def drained(self, endpoint: EndpointAddress, wait_s: float) -> PeerAnswers:
        """Ask all of them at once, each of which may wait so long for the endpoint to become idle there."""
        ...

    def last_told(self, endpoint: EndpointAddress) -> PeerAnswers:
        """What they said last."""
        ...


class _RefusedError(Exception):
    def __init__(self, answer: web.Response) -> None:
        super().__init__()
        self.answer = answer


Call = Callable[[web.Request, Endpoint, bool], Awaitable[web.Response]]


class DrainCalls:
    """The handlers."""

    def __init__(
        self, pool: PoolState, callers: Callers, polls: LongPolls, peers: Peers, *, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        self._pool = pool
        self._callers = callers
        self._polls = polls
        self._peers = peers
        self._clock = clock
        self._log = log
        self._passing_on: set[asyncio.Task[PeerAnswers]] = set()

    def routes(self) -> list[web.RouteDef]:
        """For the server of the admin port."""
        of_endpoint = "/api/v1/endpoints/{endpoint}"
        return [
            web.post(f"{of_endpoint}/drain", self._checked(self._drain, {"keep"})),
            web.post(f"{of_endpoint}/undrain", self._checked(self._undrain, set())),
            web.get(f"{of_endpoint}/drained", self._checked(self._drained, {"timeout"})),
            web.get("/api/v1/drains", self._drains),
        ]

    def _checked(self, call: Call, parameters: set[str]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            if request.headers.get(FORWARDED) == self._peers.instance:
                return json_answer({"self": True})
            try:
                self._callers.check_origin(request)
                address = _address(request.match_info["endpoint"])
                self._callers.check(request, address)
                _check_parameters(request, parameters)
                endpoint = self._pool.find(address)
                if endpoint is None:
                    return error_answer(404, UNKNOWN_ENDPOINT, f"endpoint: expected one of the pool, found {address}")
                return await call(request, endpoint, FORWARDED in request.headers)
            except NotAllowedError as error:
                return error_answer(403, "not_allowed", str(error))
            except _RefusedError as refused:
                return refused.answer

        return handler

    async def _drain(self, request: web.Request, endpoint: Endpoint, forwarded: bool) -> web.Response:
        keep_s = _duration(request, "keep", KEEP, MAX_KEEP_S)
        now_s = self._clock.monotonic_s()
        before = endpoint.mark
        self._pool.mark(
            endpoint,
            DrainMark(
                marked_at_s=now_s if before is None else before.marked_at_s,
                ends_at_s=None if keep_s is None else now_s + keep_s,
            ),
        )
        if before is None and endpoint.mark is not None:  # one that has left takes none
            self._tell("drain call", request, endpoint, keep_s=keep_s, in_flight_requests=endpoint.in_flight_requests)
        query = {} if keep_s is None else {"keep": request.query["keep"]}
        return await self._answer_of_all("drain", "draining", endpoint, query, forwarded)

    async def _undrain(self, request: web.Request, endpoint: Endpoint, forwarded: bool) -> web.Response:
        if self._pool.lift_mark(endpoint):
            self._tell("undrain call", request, endpoint)
        return await self._answer_of_all("undrain", endpoint.state.value, endpoint, {}, forwarded)

    async def _answer_of_all(
        self, action: str, state: str, endpoint: Endpoint, query: Mapping[str, str], forwarded: bool
    ) -> web.Response:
        told = {"endpoint": endpoint.address, "state": state, "reason": endpoint.reason}
        if forwarded:
            return json_answer({**told, "in_flight_requests": endpoint.in_flight_requests})
        peers = await self._pass_on(action, endpoint.address, query)
        return json_answer({**told, **_counts(endpoint, peers)})

    async def _pass_on(self, action: str, address: EndpointAddress, query: Mapping[str, str]) -> PeerAnswers:
        """Tell all; what was begun goes on when the caller hangs up, so its number is limited here."""
        if len(self._passing_on) >= MAX_PASSED_ON:
            return self._peers.last_told(address)
        task = asyncio.create_task(self._peers.call(action, address, query))
        self._passing_on.add(task)
        task.add_done_callback(self._passing_on.discard)
        return await asyncio.shield(task)

    async def _drained(self, request: web.Request, endpoint: Endpoint, forwarded: bool) -> web.Response:
        timeout_s = _duration(request, "timeout", kinds.DURATION, MAX_TIMEOUT_S)
        timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        with self._polls.place(forwarded=forwarded) as placed:
            wait_s = timeout_s if placed else 0.0
            told = {"endpoint": endpoint.address, "state": endpoint.state.value}
            if forwarded:
                await self._polls.wait_idle(endpoint, wait_s)
                count = endpoint.in_flight_requests
                return json_answer({**told, "in_flight_requests": count}, status=202 if count else 200)
            peers = await self._wait_for_all(endpoint, wait_s)
            told["state"] = endpoint.state.value
            idle = not endpoint.in_flight_requests and peers.idle
            return json_answer({**told, **_counts(endpoint, peers)}, status=200 if idle else 202)

    async def _wait_for_all(self, endpoint: Endpoint, wait_s: float) -> PeerAnswers:
        """Until nothing runs there, here and elsewhere, the time is over, or this process shuts down."""
        loop, polls, address = asyncio.get_running_loop(), self._polls, endpoint.address
        ends_at_s = loop.time() + wait_s
        while True:
            await polls.wait_idle(endpoint, ends_at_s - loop.time())
            if polls.stopping:
                return self._peers.last_told(address)
            may_wait_s = 0.0 if endpoint.in_flight_requests else max(0.0, ends_at_s - loop.time())
            peers = await polls.unless_stopping(self._peers.drained(address, may_wait_s)) or self._peers.last_told(address)
            left_s = ends_at_s - loop.time()
            if (peers.idle and not endpoint.in_flight_requests) or left_s <= 0 or polls.stopping:
                return peers
            await polls.pause(min(left_s, PEERS_ASKED_AGAIN_AFTER_S))

    async def _drains(self, _request: web.Request) -> web.Response:
        now_s = self._clock.monotonic_s()
        marks = [
            {
                "endpoint": e.address,
                "incarnation": e.spec.incarnation,
                "since_s": round(now_s - e.mark.marked_at_s, 3),
                "ends_in_s": None if (left_s := e.mark.left_s(now_s)) is None else round(left_s, 3),
            }
            for e in self._pool.endpoints
            if e.mark is not None
        ]
        drains = self._pool.drains
        return json_answer(
            {
                "instance": self._peers.instance,
                "recommended_min_wait_s": drains.recommended_min_wait_s,
                "marks": marks,
                "drains": [record.as_json() for record in drains.newest()],
            }
        )

    def _tell(self, event: str, request: web.Request, endpoint: Endpoint, **fields: object) -> None:
        of = {"endpoint": endpoint.address, "name": endpoint.spec.name}
        self._log.info(event, **of, by=source_ip(request), with_token=bearer(request) is not None, **fields)


def _counts(endpoint: Endpoint, peers: PeerAnswers) -> dict[str, Any]:
    return {
        "in_flight_requests": endpoint.in_flight_requests + peers.in_flight_requests,
        "own_in_flight_requests": endpoint.in_flight_requests,
        "peers": peers.as_json(),
    }


def _address(text: str) -> EndpointAddress:
    host, _, port = text.rpartition(":")
    well_formed = port.isascii() and port.isdigit() and len(port) <= 5 and (":" in host) == host.startswith("[")
    try:
        return endpoint_address(host, int(port) if well_formed else 0)
    except ConfigError:
        sentence = f"endpoint: expected ip:port such as 10.0.0.1:8000 or [fd00::7]:8000, found {text[:60]!r}"
        raise _malformed("endpoint", sentence) from None


def _check_parameters(request: web.Request, known: set[str]) -> None:
    for name in request.query:
        if name not in known:
            expected = f"only {', '.join(known)}" if known else "no parameters"
            raise _malformed(name[:50], f"parameters: expected {expected}, found {name[:50]!r}")
        if len(request.query.getall(name)) > 1:
            raise _malformed(name, f"{name}: expected one value, found several")


def _duration(request: web.Request, name: str, kind: Kind[float], most_s: float) -> float | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        duration_s = kind.read(text)
    except ValueError as error:
        raise _malformed(name, f"{name}: {error}") from None
    if duration_s > most_s:
        raise _malformed(name, f"{name}: expected a duration of at most {most_s:.0f}s, found {quote(text)}")
    return duration_s


def _malformed(parameter: str, sentence: str) -> _RefusedError:
    return _RefusedError(error_answer(400, "bad_request", sentence, parameter=parameter))
