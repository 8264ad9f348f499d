"""The lists of endpoints that Envoys follow: one rendering for all of them, a few times a second at most."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from google.protobuf.any_pb2 import Any as AnyMessage

from epp.eds.assignment import AssignmentWriter, Member, member_of
from epp.eds.names import MODEL_SERVERS, TYPE_URL
from epp.eds.subscription import Response, Subscription
from epp.errors import EppError
from epp.pb.envoy.service.discovery.v3.discovery_pb2 import DiscoveryResponse
from epp.pool.endpoint import EndpointSpec, EndpointState
from epp.pool.state import PoolState

LOOK_EVERY_S = 0.1
"""Between a change of the pool and its list; also the least time between two lists."""
MAX_SUBSCRIBERS = 512
LONGEST_REASON = 500


class TooManySubscribersError(EppError):
    """As many Envoys as are allowed follow the lists already."""


class Log(Protocol):
    """Where is told what an operator should know."""

    def warning(self, event: str, **fields: object) -> object: ...


class EndpointLists:
    """Tells every subscriber the endpoints of the pool, again whenever they changed.

    Nothing is told before the pool is known. The version of a list is a hash of it, so that it is the same at every replica.
    """

    def __init__(self, pool: PoolState, *, log: Log, max_subscribers: int = MAX_SUBSCRIBERS) -> None:
        self._pool = pool
        self._log = log
        self._max_subscribers = max_subscribers
        self._known_names = frozenset({MODEL_SERVERS, pool.name})
        self._writer = AssignmentWriter()
        self._subscribers: dict[Subscription, None] = {}
        """Only the keys count."""
        self._picture: list[tuple[EndpointSpec, EndpointState, bool]] | None = None
        self._members: list[Member] = []
        self._serial = 0
        self._rendered: dict[tuple[str, ...], Response] = {}
        self._refused_because: str | None = None
        self._has_warned_of_names = False

    @property
    def subscribers(self) -> int:
        """Envoys that follow the lists now."""
        return len(self._subscribers)

    def subscribe(self, send: Callable[[bytes], object], end: Callable[[], object]) -> Subscription:
        """A new stream; `send` and `end` as in `Subscription`.

        Raises:
            TooManySubscribersError: There is no room for it.
        """
        if len(self._subscribers) >= self._max_subscribers:
            raise TooManySubscribersError(f"{self._max_subscribers} streams for endpoints are open already")
        subscription = Subscription(self, send, end)
        self._subscribers[subscription] = None
        self._look()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """The stream is over; again does nothing."""
        self._subscribers.pop(subscription, None)

    def end_all(self) -> None:
        """This process shuts down: let every Envoy find another replica. Who comes back is served."""
        for subscription in tuple(self._subscribers):
            subscription.end()

    async def run(self) -> NoReturn:
        """Follow the pool; ends by cancellation."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.tell()

    def tell(self) -> None:
        """Send the newest list to those who have an older one."""
        if not self._subscribers:
            return
        self._look()
        for subscription in tuple(self._subscribers):
            subscription.update()

    # ── for the subscriptions ──

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that there is a list for, each once, in order."""
        wanted = set(names)
        if (unknown := wanted - self._known_names) and not self._has_warned_of_names:
            self._has_warned_of_names = True
            self._log.warning(
                "an Envoy asks for the endpoints of a cluster of another name and gets none",
                expected=sorted(self._known_names),
                found=min(unknown)[:200],
            )
        return tuple(sorted(wanted & self._known_names))

    def current(self, names: tuple[str, ...]) -> Response | None:
        """The newest list under these names; None while the pool is not known."""
        if self._picture is None:
            return None
        response = self._rendered.get(names)
        if response is None:
            response = self._rendered[names] = self._render(names, self._members)
        return response

    def refused(self, response: Response, why: str) -> None:
        """An Envoy does not take this list. A reason is told of once, however many refuse and however often."""
        if why != self._refused_because:
            self._refused_because = why
            self._log.warning("an Envoy refused the list of endpoints", nonce=response.nonce, reason=why[:LONGEST_REASON])

    def _look(self) -> None:
        """Take over what the pool is now.

        Most of the time nothing changed, so what is compared is what is quickly there: the specs as they are (half a
        microsecond an endpoint, half of what whole members take).
        """
        if not self._pool.listed:
            return
        endpoints = self._pool.endpoints
        picture = [(each.spec, each.state, each.health.demoted_because is None) for each in endpoints]
        if picture != self._picture:
            self._picture = picture
            self._members = [member_of(endpoint) for endpoint in endpoints]
            self._serial += 1
            self._rendered.clear()

    def _render(self, names: tuple[str, ...], members: list[Member]) -> Response:
        values = [self._writer.write(name, members).SerializeToString(deterministic=True) for name in names]
        nonce = f"{self._serial} {' '.join(names)}"
        message = DiscoveryResponse(
            version_info=hashlib.blake2b(b"".join(values), digest_size=8).hexdigest(),
            resources=[AnyMessage(type_url=TYPE_URL, value=value) for value in values],
            type_url=TYPE_URL,
            nonce=nonce,
        )
        return Response(nonce, message.SerializeToString())
