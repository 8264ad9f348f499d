"""The Lease: one leader at a time, whatever the clocks say, and a quick hand-over."""

import asyncio
import datetime
import random
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import pytest

from epp.discovery.kubernetes.api_errors import ConflictError, ForbiddenError, NotFoundError
from epp.discovery.kubernetes.leader import LEASE_S, RENEW_DEADLINE_S, LeaderElection
from tests.fakes.clock import FakeClock

FOLDER = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class FakeLeases:
    """One Lease with the optimistic locking of an API server."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.writes = 0

    async def get(self, path: str) -> bytes:
        assert path == f"{FOLDER}/l"
        self._check()
        if self.lease is None:
            raise NotFoundError(404, "NotFound", "no lease")
        return msgspec.json.encode(self.lease)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        assert path == FOLDER
        self._check()
        if self.lease is not None:
            raise ConflictError(409, "AlreadyExists", "there is one")
        return self._store(body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        assert path == f"{FOLDER}/l"
        self._check()
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError(409, "Conflict", "it has been changed")
        return self._store(body)

    def _check(self) -> None:
        if self.away:
            raise ForbiddenError(403, "Forbidden", "no access to leases")

    def _store(self, body: Mapping[str, Any]) -> bytes:
        self.version += 1
        self.writes += 1
        lease = msgspec.json.decode(msgspec.json.encode(body))
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        return msgspec.json.encode(lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec


class Lines:
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))

    exception = warning


class Steps:
    """A sleep that lets the election make one look at a time."""

    def __init__(self) -> None:
        self._asleep = asyncio.Event()
        self._wake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        assert 0 < seconds < LEASE_S
        self._asleep.set()
        await self._wake.wait()
        self._wake.clear()

    async def look(self) -> None:
        """Wake it and wait until it sleeps again."""
        self._asleep.clear()
        self._wake.set()
        await self._asleep.wait()

    async def first(self) -> None:
        await self._asleep.wait()


class Replica:
    def __init__(self, leases: FakeLeases, name: str, clock: FakeClock) -> None:
        self.lines = Lines()
        self.steps = Steps()
        self.clock = clock
        self.election = LeaderElection(
            leases,
            namespace="ns",
            name="l",
            identity=name,
            clock=clock,
            random=random.Random(1),
            log=self.lines,
            sleep=self.steps.sleep,
            now=lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=clock.monotonic_s()),
        )
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.election.run())
        await self.steps.first()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_first_replica_leads_and_the_second_sees_it() -> None:
    leases = FakeLeases()
    async with Replica(leases, "a", FakeClock()) as a, Replica(leases, "b", FakeClock()) as b:
        assert (a.election.is_leader, b.election.is_leader) == (True, False)
        assert b.election.leader == "a"
        assert leases.spec["holderIdentity"] == "a"
        assert leases.spec["leaseTransitions"] == 0
        assert leases.spec["leaseDurationSeconds"] == 15
        assert leases.spec["renewTime"].endswith("Z")
    assert ("leader", {"identity": "a", "leads": True, "lease": "l"}) in a.lines.seen


async def test_a_leader_that_renews_stays_the_leader() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a, Replica(leases, "b", clock) as b:
        for _ in range(20):
            clock.advance(2.0)
            await a.steps.look()
            await b.steps.look()
            assert (a.election.is_leader, b.election.is_leader) == (True, False)
        assert leases.spec["leaseTransitions"] == 0


async def test_a_follower_takes_over_when_the_lease_did_not_change_for_its_time_by_its_own_clock() -> None:
    leases, a_clock, b_clock = FakeLeases(), FakeClock(), FakeClock()
    async with Replica(leases, "a", a_clock), Replica(leases, "b", b_clock) as b:
        led = []
        for seconds in (LEASE_S - 1, 1.0):
            b_clock.advance(seconds)
            await b.steps.look()
            led.append(b.election.is_leader)
        assert led == [False, True]
        assert leases.spec["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_steps_down_before_another_may_take_over() -> None:
    assert RENEW_DEADLINE_S < LEASE_S
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a:
        leases.away = True
        clock.advance(RENEW_DEADLINE_S)
        await a.steps.look()
        assert not a.election.is_leader
        assert [event for event, _ in a.lines.seen].count("the lease cannot be held") == 1
        await a.steps.look()
        assert [event for event, _ in a.lines.seen].count("the lease cannot be held") == 1
        leases.away = False
        await a.steps.look()
        assert a.election.is_leader


async def test_who_resigns_is_followed_at_once() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a, Replica(leases, "b", clock) as b:
        await a.__aexit__()
        await a.election.resign()
        assert not a.election.is_leader
        assert leases.spec["holderIdentity"] == ""
        await b.steps.look()
        assert b.election.is_leader


async def test_who_does_not_lead_gives_nothing_back() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock), Replica(leases, "b", clock) as b:
        writes = leases.writes
        await b.election.resign()
        assert leases.writes == writes


async def test_of_two_that_see_no_lease_one_leads() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a, Replica(leases, "b", clock) as b:
        clock.advance(LEASE_S)  # both believe it is over
        await asyncio.gather(a.steps.look(), b.steps.look())
        assert [a.election.is_leader, b.election.is_leader].count(True) == 1


@pytest.mark.parametrize("lease", [{"spec": {"renewTime": 3}}, {"spec": []}])
async def test_an_odd_lease_is_told_once_and_left_alone(lease: dict[str, Any]) -> None:
    leases = FakeLeases()
    leases.lease = lease
    async with Replica(leases, "a", FakeClock()) as a:
        await a.steps.look()
        assert not a.election.is_leader
        assert len(a.lines.seen) == 1
        assert leases.writes == 0


class SlowLeases(FakeLeases):
    """Stores at once, and never answers the request that stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = asyncio.Event()

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        await super().create(path, body)
        self.stored.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")


async def test_a_lease_whose_answer_never_came_is_given_back_too() -> None:
    leases = SlowLeases()
    replica = Replica(leases, "a", FakeClock())
    task = asyncio.create_task(replica.election.run())
    await leases.stored.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await replica.election.resign()
    assert leases.spec["holderIdentity"] == ""


async def test_a_lease_that_could_not_be_renewed_is_given_back_if_it_is_still_ours() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a:
        leases.away = True
        clock.advance(RENEW_DEADLINE_S)
        await a.steps.look()
        leases.away = False
    await a.election.resign()
    assert leases.spec["holderIdentity"] == ""


async def test_the_end_of_a_lead_that_came_by_time_is_told() -> None:
    leases, clock = FakeLeases(), FakeClock()
    async with Replica(leases, "a", clock) as a:
        leases.away = True
        clock.advance(RENEW_DEADLINE_S)
        await a.steps.look()
    assert [fields["leads"] for event, fields in a.lines.seen if event == "leader"] == [True, False]


async def test_a_bug_in_the_election_is_told_and_ends_nothing_else() -> None:
    class Broken(FakeLeases):
        async def get(self, path: str) -> bytes:
            raise RuntimeError("a bug")

    async with Replica(Broken(), "a", FakeClock()) as a:
        await a.steps.look()
        assert [event for event, _ in a.lines.seen] == ["bug_in_election"] * 2
