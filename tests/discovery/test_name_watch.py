from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from epp.discovery.name_watch import EMPTY_TTL_S, TTL_MAX_S, NameWatch
from epp.discovery.resolver import Resolution
from tests.discovery.fakes import FakeResolver, FakeSleep, capturing_log, eventually, running

FAILED = Resolution(ipv4=None, ipv6=None, reason="timeout")
GONE = Resolution(ipv4=(), ipv6=(), reason="the name does not exist")


def found(*ipv4: str, ipv6: tuple[str, ...] | None = (), ttl_s: float = 5.0) -> Resolution:
    return Resolution(ipv4=ipv4, ipv6=ipv6, ttl_s=ttl_s, reason="AAAA: timeout" if ipv6 is None else None)


class Watched:
    """A name under watch; `step` lets it ask once more."""

    def __init__(self, *answers: Resolution, keep_when_gone: bool = False) -> None:
        self.sleep = FakeSleep()
        self.changes: list[tuple[str, ...] | None] = []
        log, self.lines = capturing_log()
        self.watch = NameWatch(
            "gpus.lan",
            FakeResolver(gpus_lan=list(answers)),
            on_change=lambda: self.changes.append(self.watch.addresses),
            log=log,
            sleep=self.sleep,
            keep_when_gone=keep_when_gone,
        )

    def running(self) -> AbstractAsyncContextManager[Any]:
        return running(self.watch.run())

    async def first(self) -> None:
        await eventually(lambda: self.sleep.pauses_s)

    async def step(self) -> None:
        await self.sleep.end_pause()


async def test_a_change_of_addresses_is_told_once_and_no_change_is_not() -> None:
    watched = Watched(found("10.0.0.1"), found("10.0.0.1"), found("10.0.0.1", "10.0.0.2", ipv6=("fd00::1",)))
    async with watched.running():
        await watched.first()
        await watched.step()
        await watched.step()

    assert watched.changes == [("10.0.0.1",), ("10.0.0.1", "10.0.0.2", "fd00::1")]
    assert [line["event"] for line in watched.lines] == ["name_resolved", "name_resolved"]


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(0.0, 1.0), (1.0, 1.0), (12.0, 12.0), (30.0, 30.0), (86400.0, 30.0)])
async def test_the_next_question_comes_when_the_ttl_ends_within_bounds(ttl_s: float, pause_s: float) -> None:
    watched = Watched(found("10.0.0.1", ttl_s=ttl_s))
    async with watched.running():
        await watched.first()

    assert watched.sleep.pauses_s == [pause_s]


async def test_a_failure_keeps_the_last_addresses_backs_off_and_says_so_once() -> None:
    watched = Watched(found("10.0.0.1"), *[FAILED] * 7, found("10.0.0.1"))
    async with watched.running():
        await watched.first()
        for _ in range(8):
            await watched.step()

    assert watched.changes == [("10.0.0.1",)]
    assert watched.sleep.pauses_s[1:8] == [1.0, 2.0, 4.0, 8.0, 16.0, TTL_MAX_S, TTL_MAX_S]
    assert [(line["event"], line["log_level"]) for line in watched.lines] == [
        ("name_resolved", "info"),
        ("name_not_resolved", "warning"),
        ("name_resolved", "info"),
    ]
    assert watched.lines[1]["reason"] == "timeout"
    assert watched.lines[1]["addresses"] == ["10.0.0.1"]


async def test_nothing_is_known_while_the_first_questions_fail() -> None:
    watched = Watched(FAILED, FAILED, found("10.0.0.1"))
    async with watched.running():
        await watched.first()
        assert watched.watch.asked.is_set()
        assert watched.watch.addresses is None
        await watched.step()
        assert watched.changes == []
        await watched.step()

    assert watched.changes == [("10.0.0.1",)]
    assert len(watched.lines) == 2


async def test_an_authoritative_nothing_is_the_truth_and_is_asked_again_soon() -> None:
    watched = Watched(found("10.0.0.1"), GONE, GONE, found("10.0.0.2"))
    async with watched.running():
        await watched.first()
        for _ in range(3):
            await watched.step()

    assert watched.changes == [("10.0.0.1",), (), ("10.0.0.2",)]
    assert watched.sleep.pauses_s[1:3] == [EMPTY_TTL_S, EMPTY_TTL_S]
    assert [line["event"] for line in watched.lines] == ["name_resolved", "name_not_resolved", "name_resolved"]


async def test_a_name_that_is_gone_keeps_its_addresses_when_a_file_says_it_is_a_member() -> None:
    watched = Watched(found("10.0.0.1"), GONE, found("10.0.0.2"), keep_when_gone=True)
    async with watched.running():
        await watched.first()
        await watched.step()
        assert watched.watch.addresses == ("10.0.0.1",)
        await watched.step()

    assert watched.changes == [("10.0.0.1",), ("10.0.0.2",)]


async def test_a_record_type_that_fails_keeps_its_last_addresses_while_the_other_goes_on() -> None:
    watched = Watched(
        found("10.0.0.1", ipv6=("fd00::1",)),
        found("10.0.0.2", ipv6=None),
        found("10.0.0.3", ipv6=None),
        found("10.0.0.3"),
    )
    async with watched.running():
        await watched.first()
        for _ in range(3):
            await watched.step()

    assert watched.changes == [("10.0.0.1", "fd00::1"), ("10.0.0.2", "fd00::1"), ("10.0.0.3", "fd00::1"), ("10.0.0.3",)]
    assert watched.sleep.pauses_s == [5.0, 5.0, 5.0, 5.0]


async def test_nothing_in_one_record_type_is_not_the_truth_while_the_other_was_never_told() -> None:
    watched = Watched(Resolution(ipv4=(), ipv6=None, reason="AAAA: timeout"))
    async with watched.running():
        await watched.first()

    assert watched.watch.addresses is None
    assert watched.changes == []
