"""The other replicas of this picker: what is told to one is told to all, and what they count is added."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Annotated, Any, Protocol, Self, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from structlog.typing import FilteringBoundLogger
from yarl import URL

from epp.admin.callers import FORWARDED, UNKNOWN_ENDPOINT
from epp.admin.token_file import TokenFile
from epp.clock import Clock
from epp.pool.drain_marks import DrainMark
from epp.pool.endpoint import EndpointAddress
from epp.pool.state import PoolState

T = TypeVar("T")

SILENT_S = 30.0
"""A replica that leaves every call of so long unanswered is dead, and the requests that went through it have ended with it.

When nobody asked it for so long, that was no silence.
"""
PEER_WAITS_AT_MOST_S = 10.0
MARKS_MORE_S = 1.5
"""Marks are asked for twice in a life, and nobody waits for the answer with a time limit of his own."""
LEARN_AGAIN_AFTER_S = 45.0
"""By then the others have seen this replica in DNS, so that whatever comes later is told to it."""
MAX_ANSWER_BYTES = 64 << 10
MAX_MARKS_BYTES = 4 << 20
MAX_REMEMBERED_COUNTS = 10_000
_A_CENTURY_S = 100 * 366 * 86_400.0
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=_A_CENTURY_S)]


class _Error(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(max_length=100)] = ""


class _Said(msgspec.Struct):
    """An answer of a peer to a call on an endpoint; anything else in it is of no interest."""

    in_flight_requests: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    state: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    self: bool = False
    error: _Error | None = None

    @property
    def lacks_endpoint(self) -> bool:
        """Its pool has no such endpoint. A 404 that does not say so is of a program that knows no such calls."""
        return self.error is not None and self.error.code == UNKNOWN_ENDPOINT


class _Mark(msgspec.Struct):
    endpoint: Annotated[str, msgspec.Meta(max_length=100)]
    incarnation: Annotated[str, msgspec.Meta(max_length=300)]
    since_s: _Seconds
    ends_in_s: _Seconds | None


class _Marks(msgspec.Struct):
    instance: Annotated[str, msgspec.Meta(max_length=100)]
    marks: list[_Mark]


class Directory(Protocol):
    """Where the other replicas are (`epp.discovery.replicas`)."""

    def named(self) -> Sequence[str]: ...

    def has_address(self, ip: str) -> bool: ...

    async def asked(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silence:
    """Calls to a peer that had no usable answer, one after the other.

    Attributes:
        since_s: When the first of them had failed, monotonic.
        last_s: When the last one had.
    """

    since_s: float
    last_s: float

    def is_death(self, now_s: float) -> bool:
        return now_s - self.since_s > SILENT_S and not self.is_over(now_s)

    def is_over(self, now_s: float) -> bool:
        """Nobody asked for so long that it says nothing of now."""
        return now_s - self.last_s > SILENT_S


class _SilentError(Exception):
    """A peer gave no answer that can be used; the text says why, in words that hold nothing of what it sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """What is known of one endpoint at one peer.

    Attributes:
        in_flight_requests: As it said now, or, when it is silent, a short while ago; None when nobody knows.
        idle: Nothing runs there, or the peer is silent for so long that nothing can.
        state: Of the endpoint there; None when it did not say.
        error: Why there is no answer; else None.
    """

    in_flight_requests: int | None
    idle: bool
    state: str | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Its part in the answer to a caller."""
        said: dict[str, Any] = {"in_flight_requests": self.in_flight_requests}
        if self.state is not None:
            said["state"] = self.state
        if self.error is not None:
            said |= {"error": self.error, "taken_for_dead": self.idle and self.in_flight_requests is None}
        return said


class PeerAnswers:
    """What is known of one endpoint at all peers, by `ip:port` of each."""

    def __init__(self, by_peer: Mapping[str, PeerAnswer]) -> None:
        self._by_peer = by_peer

    @property
    def in_flight_requests(self) -> int:
        """Over all peers, as far as anybody knows."""
        return sum(answer.in_flight_requests or 0 for answer in self._by_peer.values())

    @property
    def idle(self) -> bool:
        """Nothing runs there on any of them."""
        return all(answer.idle for answer in self._by_peer.values())

    def as_json(self) -> dict[str, Any]:
        """By peer."""
        return {peer: answer.as_json() for peer, answer in self._by_peer.items()}


class Peers:
    """Talks to the other replicas, an async context manager. A peer is never believed to be well-behaved.

    This replica may be named among them: it then hears its own `instance` and leaves itself out from there on.

    Attributes:
        instance: Names this process among the replicas.
        failed_calls: Calls that had no usable answer so far.
    """

    def __init__(
        self, directory: Directory, *, token: TokenFile | None, timeout_s: float, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        """Args:
        timeout_s: How long a peer may take to answer, besides what it is asked to wait.
        """
        self.instance = uuid.uuid4().hex
        self.failed_calls = 0
        self._directory = directory
        self._token = token
        self._timeout_s = timeout_s
        self._clock = clock
        self._log = log
        self._session: ClientSession | None = None
        self._myself: set[str] = set()
        self._told: dict[tuple[str, EndpointAddress], tuple[float, int]] = {}
        self._silent: dict[str, _Silence] = {}
        """By peer; one that answered last is not there."""

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            # No limit: the port's connections and `DrainCalls` bound what is asked at once, and a drain call must not stand in
            # line behind those that wait.
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "inference-epp"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    @property
    def others(self) -> tuple[str, ...]:
        """The replicas besides this one, as `ip:port`."""
        return tuple(peer for peer in self._directory.named() if peer not in self._myself)

    def has_address(self, ip: str) -> bool:
        """Whether a replica is at `ip`."""
        return self._directory.has_address(ip)

    async def call(self, action: str, endpoint: EndpointAddress, query: Mapping[str, str]) -> PeerAnswers:
        """Pass `drain` or `undrain` on to all peers at once."""
        return await self._ask_all("POST", action, endpoint, query, 0.0)

    async def drained(self, endpoint: EndpointAddress, wait_s: float) -> PeerAnswers:
        """Ask all peers at once how much runs there; each may wait for the end of it for `wait_s`, or 10 s if that is less."""
        wait_s = min(wait_s, PEER_WAITS_AT_MOST_S)
        return await self._ask_all("GET", "drained", endpoint, {"timeout": f"{int(wait_s * 1000)}ms"}, wait_s)

    def last_told(self, endpoint: EndpointAddress) -> PeerAnswers:
        """What they said last."""
        return PeerAnswers({peer: self._without_answer(peer, endpoint, "not asked now") for peer in self.others})

    async def learn(self, pool: PoolState) -> None:
        """Take over the marks that peers have, for endpoints of the same incarnation; never shortens one."""
        peers = self.others
        for found in await asyncio.gather(*(self._marks_of(peer) for peer in peers)):
            for told in found:
                self._take_over(told, pool)

    async def run(self, pool: PoolState) -> None:
        """Learn once more when the others know of this replica; then there is nothing to do but to answer. Never returns."""
        await asyncio.sleep(LEARN_AGAIN_AFTER_S)
        await self.learn(pool)
        await asyncio.Event().wait()

    async def asked(self) -> None:
        """Wait until it is known where they are."""
        await self._directory.asked()

    # ── one peer ──

    async def _ask_all(
        self, method: str, action: str, endpoint: EndpointAddress, query: Mapping[str, str], wait_s: float
    ) -> PeerAnswers:
        peers = self.others
        self._forget_those_that_left(peers)
        path = f"/api/v1/endpoints/{endpoint}/{action}"
        answers = await asyncio.gather(*(self._ask(peer, method, path, query, wait_s, endpoint) for peer in peers))
        return PeerAnswers({peer: answer for peer, answer in zip(peers, answers, strict=True) if answer is not None})

    async def _ask(
        self, peer: str, method: str, path: str, query: Mapping[str, str], wait_s: float, endpoint: EndpointAddress
    ) -> PeerAnswer | None:
        """What the peer says of the endpoint; None when the peer is this replica."""
        try:
            said = await self._read(peer, method, path, query, wait_s, _Said, MAX_ANSWER_BYTES)
        except _SilentError as silent:
            return self._without_answer(peer, endpoint, str(silent))
        if said.self:
            self._myself.add(peer)
            return None
        self._remember(peer, endpoint, said.in_flight_requests)
        return PeerAnswer(
            in_flight_requests=said.in_flight_requests,
            idle=not said.in_flight_requests,
            state="unknown" if said.lacks_endpoint else said.state,
        )

    def _without_answer(self, peer: str, endpoint: EndpointAddress, error: str) -> PeerAnswer:
        now_s = self._clock.monotonic_s()
        silence = self._silent.get(peer)
        told_at_s, count = self._told.get((peer, endpoint), (float("-inf"), 0))
        if now_s - told_at_s <= SILENT_S:
            return PeerAnswer(in_flight_requests=count, idle=not count, error=error)
        return PeerAnswer(in_flight_requests=None, idle=silence is not None and silence.is_death(now_s), error=error)

    async def _marks_of(self, peer: str) -> list[_Mark]:
        try:
            said = await self._read(peer, "GET", "/api/v1/drains", {}, MARKS_MORE_S, _Marks, MAX_MARKS_BYTES)
        except _SilentError:
            return []
        if said.instance == self.instance:
            self._myself.add(peer)
            return []
        return said.marks

    def _take_over(self, told: _Mark, pool: PoolState) -> None:
        endpoint = pool.find(EndpointAddress(told.endpoint))
        if endpoint is None or endpoint.spec.incarnation != told.incarnation or endpoint not in pool.endpoints:
            return
        now_s = self._clock.monotonic_s()
        mark = DrainMark(marked_at_s=now_s - told.since_s, ends_at_s=None if told.ends_in_s is None else now_s + told.ends_in_s)
        if endpoint.mark is None or mark.outlasts(endpoint.mark):
            pool.mark(endpoint, mark)
            self._log.info("drain mark of another replica", endpoint=endpoint.address, ends_in_s=told.ends_in_s)

    async def _read(
        self, peer: str, method: str, path: str, query: Mapping[str, str], wait_s: float, kind: type[T], most_bytes: int
    ) -> T:
        """The content of a peer's answer.

        Raises:
            _SilentError: It gave none that can be used.
        """
        try:
            async with asyncio.timeout(self._timeout_s + wait_s):
                status, body = await self._exchange(peer, method, path, query, most_bytes)
            said = msgspec.json.decode(body, type=kind)
        except TimeoutError:
            problem = f"no answer within {self._timeout_s + wait_s:g} s"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            problem = "unreadable answer"
        except (ClientError, OSError) as error:
            problem = f"no answer: {type(error).__name__}"
        except _SilentError as silent:
            problem = str(silent)
        else:
            if status != 404 or (isinstance(said, _Said) and said.lacks_endpoint):
                self._silent.pop(peer, None)
                return said
            problem = "answered 404"
        self._note_silence(peer, problem)
        raise _SilentError(problem)

    async def _exchange(
        self, peer: str, method: str, path: str, query: Mapping[str, str], most_bytes: int
    ) -> tuple[int, bytes]:
        assert self._session is not None, "the context is entered"
        host, _, port = peer.rpartition(":")
        try:
            ip_address(host.strip("[]"))
        except ValueError:
            raise _SilentError("its name has no address") from None
        headers = {FORWARDED: self.instance}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token.current().decode()}"
        url = URL.build(scheme="http", host=host.strip("[]"), port=int(port), path=path, query=dict(query))
        async with self._session.request(method, url, headers=headers, allow_redirects=False) as answer:
            if answer.status not in {200, 202, 404}:
                raise _SilentError(f"answered {answer.status}")
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > most_bytes:
                    raise _SilentError("unreadable answer")
            return answer.status, bytes(body)

    # ── memory ──

    def _remember(self, peer: str, endpoint: EndpointAddress, count: int) -> None:
        if len(self._told) >= MAX_REMEMBERED_COUNTS:
            self._told.clear()
        self._told[peer, endpoint] = self._clock.monotonic_s(), count

    def _note_silence(self, peer: str, problem: str) -> None:
        self.failed_calls += 1
        now_s = self._clock.monotonic_s()
        before = self._silent.get(peer)
        if before is None:
            self._log.warning("another replica gives no answer", peer=peer, problem=problem)
        if before is None or before.is_over(now_s):
            self._silent[peer] = _Silence(since_s=now_s, last_s=now_s)
        else:
            self._silent[peer] = _Silence(since_s=before.since_s, last_s=now_s)

    def _forget_those_that_left(self, peers: Sequence[str]) -> None:
        for peer in self._silent.keys() - set(peers):
            del self._silent[peer]
        self._myself &= set(self._directory.named())
