"""What stands in for the network, the log and the passing of time."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import dns.asyncresolver
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import structlog
from structlog.testing import LogCapture
from structlog.typing import FilteringBoundLogger

from epp.discovery.resolver import Resolution
from epp.pool.endpoint import EndpointSpec
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock

WAIT_MAX_S = 60.0
"""Only so that a wait for what never comes ends; what comes takes milliseconds, and on a busy machine as long as it likes."""


def capturing_log() -> tuple[FilteringBoundLogger, list[dict[str, Any]]]:
    """A logger, and the list that its lines go to."""
    capture = LogCapture()
    wrapper = structlog.make_filtering_bound_logger(logging.NOTSET)
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture], wrapper_class=wrapper)
    return cast("FilteringBoundLogger", log), cast("list[dict[str, Any]]", capture.entries)


class RecordingPool(PoolState):
    """A pool that remembers each membership it was told."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), name="p", source="test")
        self.memberships: list[list[EndpointSpec]] = []

    def sync(self, specs: Iterable[EndpointSpec]) -> None:
        told = list(specs)
        self.memberships.append(told)
        super().sync(told)

    @property
    def addresses(self) -> list[str]:
        return [endpoint.address for endpoint in self.endpoints]

    @property
    def names(self) -> list[str]:
        return [endpoint.spec.name for endpoint in self.endpoints]


class FakeSleep:
    """Pauses that end when a test says so.

    Attributes:
        pauses_s: Every pause that was asked for, in seconds.
    """

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self._wake = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        await self._wake.acquire()

    async def end_pause(self) -> None:
        """Let the running pause end, and wait until the next one is asked for."""
        before = len(self.pauses_s)
        self._wake.release()
        await eventually(lambda: len(self.pauses_s) > before)


class FakeResolver:
    """Answers from lists, one after the other; the last one stays.

    Attributes:
        asked: Names in the order of the questions.
    """

    def __init__(self, **answers: list[Resolution]) -> None:
        self.asked: list[str] = []
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.silent: set[str] = set()

    async def resolve(self, name: str) -> Resolution:
        self.asked.append(name)
        if name in self.silent:
            await asyncio.Event().wait()
        answers = self._answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@asynccontextmanager
async def running(service: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a service for the length of the block; what it raises is raised here."""
    task = asyncio.create_task(service)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(condition: Callable[[], object], within_s: float = WAIT_MAX_S) -> None:
    """Wait until `condition` holds; fails after `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


class FakeDnsServer(asyncio.DatagramProtocol):
    """A DNS server on loopback.

    Attributes:
        records: Texts of records by name and type; a name that is in no key does not exist.
        rcodes: Names that get this answer code whatever they have, by name and type (`*` for every type).
        silent: Names that get no answer at all.
        ttl_s: TTL of every record.
        questions: What was asked, as (name, type).
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcodes: dict[tuple[str, str], dns.rcode.Rcode] = {}
        self.silent: set[str] = set()
        self.ttl_s: dict[str, int] = defaultdict(lambda: 7)
        self.questions: list[tuple[str, str]] = []
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, datagram: bytes, source: Any) -> None:
        query = dns.message.from_wire(datagram)
        question = query.question[0]
        name, record_type = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.questions.append((name, record_type))
        if name in self.silent:
            return
        assert self._transport is not None
        self._transport.sendto(self._answer(query, question, name, record_type).to_wire(), source)

    def _answer(
        self, query: dns.message.Message, question: dns.rrset.RRset, name: str, record_type: str
    ) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        rcode = self.rcodes.get((name, record_type), self.rcodes.get((name, "*")))
        if rcode is not None:
            answer.set_rcode(rcode)
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif texts := self.records.get((name, record_type)):
            answer.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s[record_type], "IN", record_type, texts))
        return answer

    def stub(self, *, search: tuple[str, ...] = (), ndots: int = 1) -> dns.asyncresolver.Resolver:
        """A resolver that asks this server."""
        stub = dns.asyncresolver.Resolver(configure=False)
        stub.nameservers = ["127.0.0.1"]
        stub.port = self.port
        stub.domain = dns.name.root
        stub.search = [dns.name.from_text(suffix) for suffix in search]
        stub.ndots = ndots
        return stub


@asynccontextmanager
async def dns_server() -> AsyncIterator[FakeDnsServer]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(FakeDnsServer, local_addr=("127.0.0.1", 0))
    server.port = transport.get_extra_info("sockname")[1]
    try:
        yield server
    finally:
        transport.close()
