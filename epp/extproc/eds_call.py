"""A stream of the endpoint discovery service on our own HTTP/2."""

from epp.eds.endpoint_lists import EndpointLists, TooManySubscribersError
from epp.eds.subscription import Subscription, SubscriptionError
from epp.h2.stream import Status, Stream


class EdsCall:
    """One `StreamEndpoints`: an Envoy that follows the endpoints of the pool."""

    def __init__(self, stream: Stream, lists: EndpointLists) -> None:
        self._stream = stream
        self._lists = lists
        self._subscription: Subscription | None = None

    def message(self, message: bytes) -> None:
        try:
            if self._subscription is None:
                self._subscription = self._lists.subscribe(self._stream.send, self._shut_down)
            self._subscription.receive(message)
        except TooManySubscribersError as error:
            self._stream.finish(Status.RESOURCE_EXHAUSTED, str(error))
        except SubscriptionError as error:
            self._stream.finish(Status.INVALID_ARGUMENT, str(error))

    def half_closed(self) -> None:
        self._stream.finish()

    def drained(self) -> None:
        """At most one list waits for the peer; nothing is held besides."""

    def closed(self, *, cancelled: bool) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def _shut_down(self) -> None:
        self._stream.finish(Status.UNAVAILABLE, "shutting down")
