"""Where the other replicas are."""

import asyncio
from contextlib import suppress

import pytest
import structlog

from epp.discovery.replicas import Replicas
from epp.discovery.resolver import Resolution
from epp.errors import ConfigError

LOG = structlog.get_logger()


class Answers:
    """A resolver that gives one answer after another, the last one for ever."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self._answers = list(answers)

    async def resolve(self, name: str) -> Resolution:
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Resolution(ipv4=found, ipv6=(), ttl_s=1.0, reason=None if found else "no records")


class OneQuestion:
    """Follows the names for one question each, and not on from there."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    async def sleep(self, _: float) -> None:
        self._asked.set()
        await asyncio.Event().wait()

    async def of(self, replicas: Replicas) -> None:
        self._asked.clear()
        running = asyncio.create_task(replicas.run())
        await self._asked.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_addresses_are_taken_as_they_are() -> None:
    replicas = Replicas(["http://10.0.0.1:9090", "10.0.0.2:9090", "http://[fd00::1]:9090/"], None, log=LOG)
    assert replicas.named() == ("10.0.0.1:9090", "10.0.0.2:9090", "[fd00::1]:9090")
    assert replicas.has_address("fd00::1")
    assert not replicas.has_address("10.0.0.3")


def test_one_that_is_named_twice_is_one() -> None:
    assert Replicas(["http://10.0.0.1:9090", "10.0.0.1:9090"], None, log=LOG).named() == ("10.0.0.1:9090",)


def test_without_any_there_is_nobody() -> None:
    assert not Replicas([], None, log=LOG)
    assert Replicas([], None, log=LOG).named() == ()


@pytest.mark.parametrize(
    "peer", ["https://a:1", "http://a", "http://a:0", "http://a:1/x", "http://u:p@a:1", "a b:1", "::1:9090", ""]
)
def test_what_is_no_peer_is_refused(peer: str) -> None:
    with pytest.raises(ConfigError, match=r"^--peer: expected http://host:port such as"):
        Replicas([peer], None, log=LOG)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        Replicas(["x", "y"], "http://z:1", log=LOG)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["--peer", "--peer", "--peers-dns"]


async def test_a_dns_name_stands_for_the_addresses_that_it_has_now() -> None:
    question, resolver = OneQuestion(), Answers(("10.0.0.1", "10.0.0.2"), ("10.0.0.2",), ())
    replicas = Replicas([], "epp-replicas:9090", log=LOG, make_resolver=lambda: resolver, sleep=question.sleep)
    assert replicas.named() == ()
    await question.of(replicas)
    await replicas.asked()
    assert replicas.named() == ("10.0.0.1:9090", "10.0.0.2:9090")
    assert replicas.has_address("10.0.0.1")
    await question.of(replicas)
    assert replicas.named() == ("10.0.0.2:9090",)
    await question.of(replicas)
    assert replicas.named() == ()


async def test_a_peer_that_is_named_stays_one_without_an_address() -> None:
    question, resolver = OneQuestion(), Answers(("10.0.0.1",), ())
    replicas = Replicas(["http://epp-1:9090"], None, log=LOG, make_resolver=lambda: resolver, sleep=question.sleep)
    assert replicas.named() == ("epp-1:9090",)
    await question.of(replicas)
    await question.of(replicas)
    assert replicas.named() == ("10.0.0.1:9090",)
