"""epp.eds.endpoint_lists and epp.eds.subscription: who is told what, and when."""

from dataclasses import dataclass, field

import pytest
from envoy_data_plane.envoy.config.core.v3 import HealthStatus
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryResponse

from epp.eds.endpoint_lists import EndpointLists, TooManySubscribersError
from epp.eds.subscription import SubscriptionError
from epp.pool.endpoint import EndpointSpec
from epp.pool.state import PoolState
from tests.eds.client import ack, assignments, endpoints, first_request, nack
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec

HEALTHY, DRAINING, DEGRADED = HealthStatus.HEALTHY, HealthStatus.DRAINING, HealthStatus.DEGRADED


@dataclass
class Log:
    """Keeps what it is told."""

    warnings: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def warning(self, event: str, **fields: object) -> None:
        self.warnings.append((event, fields))


class Envoy:
    """One stream: what came, and the answers that Envoy would give."""

    def __init__(self, lists: EndpointLists) -> None:
        self.received: list[bytes] = []
        self.ended = 0
        self.subscription = lists.subscribe(self.received.append, self._end)

    def _end(self) -> None:
        self.ended += 1

    def ask(self, *names: str) -> None:
        self.subscription.receive(first_request(names or ("model_servers",)))

    def accept(self, *names: str) -> None:
        self.subscription.receive(ack(self.received[-1], names or ("model_servers",)))

    def refuse(self, why: str) -> None:
        self.subscription.receive(nack(self.received[-1], why))


def lists_of(pool: PoolState, log: Log | None = None, **bounds: int) -> EndpointLists:
    return EndpointLists(pool, log=log or Log(), **bounds)


def asking(lists: EndpointLists) -> Envoy:
    envoy = Envoy(lists)
    envoy.ask()
    return envoy


def drain(pool: PoolState, *numbers: int) -> None:
    """These endpoints of three drain."""
    pool.sync([spec(number, draining=number in numbers) for number in (1, 2, 3)])


def test_who_asks_is_told_the_endpoints_at_once() -> None:
    envoy = asking(lists_of(pool_of(2)))

    (response,) = envoy.received
    assert endpoints(response) == {"10.0.0.1:8000": HEALTHY, "10.0.0.2:8000": HEALTHY}
    assert DiscoveryResponse.parse(response).type_url.endswith("ClusterLoadAssignment")


def test_nothing_is_told_before_the_pool_is_known_and_an_empty_one_is_told_then() -> None:
    """An empty list would make Envoy forget the endpoints that it had from another replica."""
    pool = PoolState(FakeClock(), name="p", source="file")
    lists = lists_of(pool)
    envoy = asking(lists)
    lists.tell()
    assert envoy.received == []

    pool.sync([])
    lists.tell()
    (response,) = envoy.received
    assert endpoints(response) == {}


def test_a_change_is_told_once_and_no_change_never() -> None:
    pool = pool_of(3)
    lists = lists_of(pool)
    envoy = asking(lists)
    envoy.accept()
    lists.tell()
    assert len(envoy.received) == 1

    drain(pool, 2)
    lists.tell()
    envoy.accept()
    lists.tell()

    assert len(envoy.received) == 2
    assert endpoints(envoy.received[1])["10.0.0.2:8000"] is DRAINING


def test_a_demotion_by_the_endpoints_own_answers_is_a_change() -> None:
    pool = pool_of(2)
    lists = lists_of(pool)
    envoy = asking(lists)
    envoy.accept()

    pool.endpoints[0].health.demote("answered 500", 0.0)
    lists.tell()

    assert endpoints(envoy.received[-1]) == {"10.0.0.1:8000": DEGRADED, "10.0.0.2:8000": HEALTHY}


def test_many_changes_are_one_list_and_it_is_rendered_once_for_all() -> None:
    pool = pool_of(3)
    lists = lists_of(pool)
    envoys = [asking(lists) for _ in range(4)]
    for envoy in envoys:
        envoy.accept()
    for number in (1, 2, 3, 1, 2):
        drain(pool, number)
    lists.tell()

    assert [len(envoy.received) for envoy in envoys] == [2, 2, 2, 2]
    assert len({id(envoy.received[1]) for envoy in envoys}) == 1


def test_who_is_slow_to_answer_gets_the_newest_list_and_none_between() -> None:
    pool = pool_of(3)
    lists = lists_of(pool)
    slow = asking(lists)
    for number in (1, 2):
        drain(pool, number)
        lists.tell()
    assert len(slow.received) == 1

    slow.accept()

    assert len(slow.received) == 2
    assert endpoints(slow.received[1])["10.0.0.2:8000"] is DRAINING


def test_an_answer_to_an_older_list_says_nothing() -> None:
    pool = pool_of(3)
    lists = lists_of(pool)
    envoy = asking(lists)
    envoy.accept()
    drain(pool, 1)
    lists.tell()
    envoy.subscription.receive(ack(envoy.received[0]))
    drain(pool, 2)
    lists.tell()

    assert len(envoy.received) == 2


def test_a_list_that_several_envoys_refuse_is_told_of_once_and_is_not_sent_again() -> None:
    pool, log = pool_of(3), Log()
    lists = lists_of(pool, log)
    envoys = [asking(lists) for _ in range(3)]
    for envoy in envoys:
        envoy.refuse("no such field")
        envoy.refuse("no such field")
    lists.tell()
    ((event, fields),) = log.warnings

    assert "refused" in event
    assert fields["reason"] == "no such field"
    assert [len(envoy.received) for envoy in envoys] == [1, 1, 1]

    drain(pool, 1)
    lists.tell()
    envoys[0].refuse("again")
    assert len(log.warnings) == 2


def test_the_pools_own_name_is_understood_and_another_is_warned_of_once() -> None:
    log = Log()
    lists = lists_of(pool_of(1), log)
    envoy = Envoy(lists)
    envoy.ask("p", "model_servers", "theirs")
    assert set(assignments(envoy.received[0])) == {"p", "model_servers"}
    assert log.warnings[0][1]["found"] == "theirs"

    stranger = Envoy(lists)
    stranger.ask("other")
    assert stranger.received == []
    assert len(log.warnings) == 1


def test_who_wants_another_name_gets_it_and_who_wants_none_gets_nothing_more() -> None:
    pool = pool_of(3)
    lists = lists_of(pool)
    envoy = asking(lists)
    envoy.accept("p")
    assert set(assignments(envoy.received[1])) == {"p"}

    envoy.subscription.receive(ack(envoy.received[1], ()))
    drain(pool, 1)
    lists.tell()
    assert len(envoy.received) == 2


def test_who_asks_again_after_it_wanted_none_is_told_though_nothing_changed() -> None:
    """A cluster that was removed and added again waits for its list."""
    lists = lists_of(pool_of(3))
    envoy = asking(lists)
    envoy.subscription.receive(ack(envoy.received[0], ()))
    envoy.accept()
    envoy.accept()
    lists.tell()
    assert len(envoy.received) == 2
    assert endpoints(envoy.received[1]) == endpoints(envoy.received[0])


def test_a_reason_to_refuse_is_told_of_once_however_often_the_pool_changes() -> None:
    log, pool = Log(), pool_of(3)
    lists = lists_of(pool, log)
    envoy = asking(lists)
    for step in range(50):
        envoy.refuse("malformed")
        drain(pool, 1 + step % 3)
        lists.tell()
    envoy.refuse("something else")
    assert [fields["reason"] for _, fields in log.warnings] == ["malformed", "something else"]


def test_a_version_is_the_same_at_every_replica() -> None:
    versions = [DiscoveryResponse.parse(asking(lists_of(pool_of(3))).received[0]).version_info for _ in range(2)]
    other = DiscoveryResponse.parse(asking(lists_of(pool_of(2))).received[0]).version_info

    assert versions[0] == versions[1] != other


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"\xff\xff", "expected a DiscoveryRequest"),
        (first_request(type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster"), "found 'type.*Cluster'"),
    ],
)
def test_what_is_no_request_for_endpoints_is_refused(message: bytes, sentence: str) -> None:
    with pytest.raises(SubscriptionError, match=sentence):
        Envoy(lists_of(pool_of(1))).subscription.receive(message)


def test_there_is_room_for_so_many_and_who_goes_makes_room() -> None:
    lists = lists_of(pool_of(1), max_subscribers=2)
    first, _ = asking(lists), asking(lists)
    with pytest.raises(TooManySubscribersError):
        Envoy(lists)

    first.subscription.close()
    first.subscription.close()
    assert asking(lists).received
    assert lists.subscribers == 2


def test_at_shutdown_every_stream_is_ended_without_another_list() -> None:
    lists = lists_of(pool_of(2))
    envoys = [asking(lists) for _ in range(2)]
    lists.end_all()

    assert [envoy.ended for envoy in envoys] == [1, 1]
    assert [len(envoy.received) for envoy in envoys] == [1, 1]


def test_three_thousand_endpoints_and_an_ipv6_one_fit_into_a_list() -> None:
    specs = [spec(1, address=f"10.{number >> 8}.{number & 255}.1:8000", name=str(number)) for number in range(3_000)]
    six = EndpointSpec(address=spec(1, address="[fd00::7]:8000").address, name="six")
    told = endpoints(asking(lists_of(pool_of([*specs, six]))).received[0])

    assert len(told) == 3_001
    assert told["fd00::7:8000"] is HEALTHY
