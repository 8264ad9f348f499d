"""The Lease that names one of several replicas.

Every replica serves. The leader is for what must be done once (Events on the pool) and for people who want to see one name.
The rules are those of client-go's leader election: a follower measures by its own clock how long the Lease has not changed,
so that clocks which differ do no harm; a leader that cannot renew steps down before others may take over.
"""

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, NoReturn, Protocol

import msgspec

from epp.clock import Clock
from epp.discovery.kubernetes.api_errors import ApiError, ConflictError, NotFoundError

LEASE_S = 15.0
"""How long others wait for a leader that says nothing."""
RENEW_DEADLINE_S = 10.0
"""How long a leader without a renewal goes on to take itself for one."""
RETRY_S = 2.0
"""Pause between two looks at the Lease, or two renewals."""


class LeaseSpec(msgspec.Struct, rename="camel"):
    """What is read of `spec` of a `coordination.k8s.io/v1` Lease."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMeta(msgspec.Struct, rename="camel"):
    """What is read of `metadata`."""

    resource_version: str = ""


class Lease(msgspec.Struct):
    """A Lease as the API server sends it."""

    metadata: LeaseMeta = msgspec.field(default_factory=LeaseMeta)
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


_LEASE = msgspec.json.Decoder(Lease)


class LeaseApi(Protocol):
    """The requests that are made; `epp.discovery.kubernetes.api_server.ApiServer` has them."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes: ...

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes: ...


class LeaderLog(Protocol):
    """Where changes are told."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def exception(self, event: str, **fields: object) -> object: ...


class LeaderElection:
    """Takes part in the election until it resigns.

    Attributes:
        leader: Whom the Lease named at the last look; None when nobody.
    """

    def __init__(
        self,
        api: LeaseApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        random: Random,
        log: LeaderLog,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """`identity` must be unique among the replicas."""
        self.leader: str | None = None
        self.identity = identity
        self._api = api
        self._namespace = namespace
        self._name = name
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._clock = clock
        self._random = random
        self._log = log
        self._sleep = sleep
        self._now = now
        self._seen: LeaseSpec | None = None
        self._seen_at_s = 0.0
        self._renewed_at_s: float | None = None
        self._told_trouble: str | None = None
        self._tried = False  # the Lease may be ours, also when the answer that says so never came

    @property
    def is_leader(self) -> bool:
        """Whether this replica holds the Lease now; False again when it could not be renewed for `RENEW_DEADLINE_S`."""
        renewed = self._renewed_at_s
        return renewed is not None and self._clock.monotonic_s() - renewed < RENEW_DEADLINE_S

    async def run(self) -> NoReturn:
        """Take or renew the Lease, for ever."""
        led = False
        while True:
            try:
                await self._look()
                self._told_trouble = None
            except ConflictError:
                pass  # another replica was quicker; the next look shows who
            except ApiError as error:
                self._trouble(str(error))
            except (msgspec.DecodeError, RecursionError) as error:
                self._trouble(f"expected a Lease, found: {error}")
            except Exception:  # noqa: BLE001 - a bug here must not end a picker that serves
                self._log.exception("bug_in_election", lease=self._name)
            if led != self.is_leader:
                led = self.is_leader
                self._log.info("leader", identity=self.identity, leads=self.is_leader, lease=self._name)
            await self._sleep(RETRY_S * (1.0 + 0.2 * self._random.random()))

    async def resign(self) -> None:
        """Give the Lease back, so that another replica need not wait for its end; call it when `run` has ended."""
        if not self._tried:
            return
        self._renewed_at_s = None
        try:
            lease = _LEASE.decode(await self._api.get(f"{self._folder}/{self._name}"))
            if lease.spec.holder_identity != self.identity:
                return
            lease.spec.holder_identity = ""
            lease.spec.lease_duration_seconds = 1
            await self._write(lease.spec, lease.metadata.resource_version)
        except (ApiError, msgspec.DecodeError, RecursionError) as error:
            self._log.info("the lease was not given back, it ends by itself", lease=self._name, because=str(error))
        else:
            self.leader = None
            self._log.info("leader", identity=self.identity, leads=False, lease=self._name)

    async def _look(self) -> None:
        try:
            lease = _LEASE.decode(await self._api.get(f"{self._folder}/{self._name}"))
        except NotFoundError:
            await self._take(LeaseSpec(lease_transitions=-1), None)
            return
        spec = lease.spec
        if spec != self._seen:
            self._seen, self._seen_at_s = spec, self._clock.monotonic_s()
        self.leader = spec.holder_identity or None
        if self.leader == self.identity:
            await self._renew(spec, lease.metadata.resource_version)
        elif self.leader is None or self._is_over(spec):
            await self._take(spec, lease.metadata.resource_version)
        else:
            self._renewed_at_s = None

    def _is_over(self, spec: LeaseSpec) -> bool:
        return self._clock.monotonic_s() - self._seen_at_s >= (spec.lease_duration_seconds or LEASE_S)

    async def _renew(self, spec: LeaseSpec, version: str) -> None:
        renewed = msgspec.structs.replace(spec, renew_time=self._time(), lease_duration_seconds=int(LEASE_S))
        await self._hold(renewed, version)

    async def _take(self, spec: LeaseSpec, version: str | None) -> None:
        time = self._time()
        taken = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(LEASE_S),
            acquire_time=time,
            renew_time=time,
            lease_transitions=(spec.lease_transitions or 0) + 1,
        )
        await self._hold(taken, version)

    async def _hold(self, spec: LeaseSpec, version: str | None) -> None:
        began_s = self._clock.monotonic_s()
        await self._write(spec, version)
        self._seen, self._seen_at_s = spec, began_s
        self._renewed_at_s = began_s
        self.leader = self.identity

    async def _write(self, spec: LeaseSpec, version: str | None) -> None:
        self._tried = True
        metadata = {"name": self._name, "namespace": self._namespace}
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": msgspec.to_builtins(spec),
        }
        if version is None:
            await self._api.create(self._folder, body)
        else:
            metadata["resourceVersion"] = version
            await self._api.replace(f"{self._folder}/{self._name}", body)

    def _time(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _trouble(self, why: str) -> None:
        """One line, until it is well again."""
        if self._told_trouble is None:
            self._told_trouble = why
            self._log.warning("the lease cannot be held", lease=self._name, because=why)
