"""One stream of the endpoint discovery service, without I/O: requests in, responses out.

The protocol ("xDS REST and gRPC protocol", state of the world): the first request names what is wanted; each response is
answered by a request with its nonce, which accepts it (ACK) or refuses it (NACK, with `error_detail`). A request with an older
nonce was sent before the last response was seen and says nothing: another one follows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from epp.eds.names import TYPE_URL
from epp.errors import EppError
from epp.pb.envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest

_ERROR_DETAIL = 6
"""`DiscoveryRequest.error_detail` …"""
_STATUS_MESSAGE = 2
"""… and `google.rpc.Status.message` in it."""


class SubscriptionError(EppError):
    """A request that cannot be answered; the stream ends with it."""


@dataclass(frozen=True, slots=True)
class Response:
    """One list of endpoints, as it goes out.

    Attributes:
        nonce: By which the answer names it.
        message: A serialised `DiscoveryResponse`.
    """

    nonce: str
    message: bytes


class ListSource(Protocol):
    """Where the lists come from (`epp.eds.endpoint_lists.EndpointLists`)."""

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that there is a list for, each once, in order."""
        ...

    def current(self, names: tuple[str, ...]) -> Response | None:
        """The newest list under these names; None while the pool is not known."""
        ...

    def refused(self, response: Response, why: str) -> None:
        """An Envoy does not take this one."""
        ...

    def unsubscribe(self, subscription: "Subscription") -> None: ...


class Subscription:
    """One Envoy that wants to know the endpoints.

    At most one response is on its way at any time, so a client that reads slowly gets the newest list later, not every list.

    Args:
        send: Sends a serialised `DiscoveryResponse`.
        end: Ends the stream because this process shuts down.
    """

    def __init__(self, source: ListSource, send: Callable[[bytes], object], end: Callable[[], object]) -> None:
        self._source = source
        self._send = send
        self.end = end
        self._names: tuple[str, ...] = ()
        self._sent: Response | None = None
        self._is_answered = True
        self._is_due = True  # the client is to be told even what is not new

    def receive(self, message: bytes) -> None:
        """One request came.

        Raises:
            SubscriptionError: It is malformed, or wants something else than endpoints.
        """
        try:
            request = DiscoveryRequest.FromString(message)
        except DecodeError:
            raise SubscriptionError("expected a DiscoveryRequest") from None
        if request.type_url not in ("", TYPE_URL):
            raise SubscriptionError(f"type_url: expected {TYPE_URL}, found {request.type_url[:200]!r}")
        if self._sent is not None:
            if request.response_nonce != self._sent.nonce:
                return
            why = _error_detail(request)
            if why is not None and not self._is_answered:
                self._source.refused(self._sent, why)
        self._is_answered = True
        names = self._source.known(request.resource_names)
        if not set(names) <= set(self._names):  # who asks again has forgotten what it was told
            self._is_due = True
        self._names = names
        self.update()

    def update(self) -> None:
        """Send the newest list, unless the client has it, or has not yet answered the one before."""
        if not self._names or not self._is_answered:
            return
        newest = self._source.current(self._names)
        if newest is not None and (self._is_due or self._sent is None or newest.nonce != self._sent.nonce):
            self._sent, self._is_answered, self._is_due = newest, False, False
            self._send(newest.message)

    def close(self) -> None:
        """The stream is over."""
        self._source.unsubscribe(self)


def _error_detail(request: DiscoveryRequest) -> str | None:
    """Why a response was refused; None when it was not."""
    detail = _unknown_bytes(request, _ERROR_DETAIL)
    if detail is None:
        return None
    try:
        text = _unknown_bytes(Empty.FromString(detail), _STATUS_MESSAGE)
    except DecodeError:
        text = None
    return (text or b"no reason given").decode(errors="replace")


def _unknown_bytes(message: Message, number: int) -> bytes | None:
    """A field that is not in the message's definition and holds bytes, a text or a message."""
    fields = UnknownFieldSet(message)
    values = [fields[at].data for at in range(len(fields)) if fields[at].field_number == number]
    return values[-1] if values and isinstance(values[-1], bytes) else None
