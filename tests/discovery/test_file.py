import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from epp.discovery.file import FileDiscovery
from epp.discovery.resolver import Resolution
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointState
from tests.discovery.fakes import FakeResolver, RecordingPool, capturing_log, eventually, running

TAKES_EFFECT_WITHIN_S = 1.0
"""In pauses that are asked for: how long the machine takes for the rest is its own affair."""


def entry(name: str, address: str = "10.0.0.1", *more: str) -> str:
    return "\n  ".join([f"- name: {name}", f"address: {address}", "port: 8000", *more]) + "\n"


def file_of(*entries: str) -> str:
    return "endpoints:\n" + "".join(entries)


ONE = file_of(entry("a"))
TWO = file_of(entry("a"), entry("b", "10.0.0.2"))


async def short_sleep(seconds: float) -> None:
    """A tenth of the pause, so that tests are quick."""
    await asyncio.sleep(seconds / 10)


class Watched:
    """A file under watch."""

    def __init__(
        self,
        path: Path,
        *,
        resolver: FakeResolver | None = None,
        sleep: Callable[[float], Awaitable[None]] = short_sleep,
        known_engine: Callable[[str], str] = str,
    ) -> None:
        self.path = path
        self.pool = RecordingPool()
        self.valid: list[bool] = []
        log, self.lines = capturing_log()
        self.discovery = FileDiscovery(
            self.pool,
            path,
            known_engine=known_engine,
            resolver=resolver or FakeResolver(),
            on_valid=self.valid.append,
            sleep=sleep,
            log=log,
        )

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    async def becomes(self, *names: str) -> None:
        await eventually(lambda: self.pool.names == list(names))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listing waits for hostnames, however busy the machine is."""
    monkeypatch.setattr("epp.discovery.file.FIRST_NAMES_WAIT_S", 60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "endpoints.yaml"
    path.write_text(ONE)
    return path


# ── the first reading ──


async def test_the_pool_is_listed_from_the_file_at_once(path: Path) -> None:
    watched = Watched(path)
    watched.discovery.load()
    assert not watched.pool.listed

    async with running(watched.discovery.run()):
        await eventually(lambda: watched.pool.listed)

    assert watched.pool.names == ["a"]
    assert watched.valid == [True]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "expected a readable file, found: No such file or directory"),
        (b"endpoints: [\xff]", "expected UTF-8 text, found byte 0xff at offset 12"),
        (b"endpoints: 7", "endpoints: expected a list, found 7 (line 1)"),
    ],
)
def test_a_first_file_that_cannot_be_used_is_a_configuration_error(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "endpoints.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as raised:
        Watched(path).discovery.load()

    assert str(raised.value) == f"{path}: {says}"


def test_a_byte_order_mark_does_no_harm(path: Path) -> None:
    path.write_text(ONE, encoding="utf-8-sig")

    Watched(path).discovery.load()


async def test_an_empty_list_is_an_empty_pool_that_is_listed(path: Path) -> None:
    path.write_text("endpoints: []")
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await eventually(lambda: watched.pool.listed)
        path.write_text(ONE)
        await watched.becomes("a")


# ── changes ──


def edit(path: Path, text: str) -> None:
    path.write_text(text)


def replace(path: Path, text: str) -> None:
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def delete_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def turn_link(path: Path, text: str) -> None:
    """Replace the content as the kubelet does for a ConfigMap: a new folder, and `..data` turned to it."""
    folder = path.parent / f"..{time.monotonic_ns()}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    (path.parent / "..data_tmp").symlink_to(folder.name)
    (path.parent / "..data_tmp").rename(path.parent / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


@pytest.mark.parametrize("change", [edit, replace, delete_and_write, turn_link])
async def test_a_change_takes_effect_within_a_second_however_it_is_made(
    path: Path, change: Callable[[Path, str], None]
) -> None:
    pauses: list[tuple[float, list[str]]] = []

    async def noted_sleep(seconds: float) -> None:
        pauses.append((seconds, watched.pool.names))
        await short_sleep(seconds)

    watched = Watched(path, sleep=noted_sleep)
    if change is turn_link:
        turn_link(path, ONE)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        for text, names in ((TWO, ["a", "b"]), (ONE, ["a"]), (TWO, ["a", "b"])):
            await eventually(lambda: pauses)
            running_pause = len(pauses) - 1
            change(path, text)
            await watched.becomes(*names)
            before_it_took_effect = [seconds for seconds, known in pauses[running_pause:] if known != names]
            assert 0 < sum(before_it_took_effect) <= TAKES_EFFECT_WITHIN_S

    assert watched.valid == [True]
    assert watched.events == ["endpoints_file_loaded"] * 3


async def test_a_file_that_is_being_written_is_not_taken_for_a_smaller_pool(path: Path) -> None:
    path.write_text(TWO)
    looks = 0
    halves = iter([TWO[: len(ONE)], TWO])

    async def writes_meanwhile(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks >= 3:
            path.write_text(next(halves, TWO))
        await asyncio.sleep(seconds / 10)

    watched = Watched(path, sleep=writes_meanwhile)
    async with running(watched.discovery.run()):
        await watched.becomes("a", "b")
        await eventually(lambda: looks > 20)

    assert all(len(membership) == 2 for membership in watched.pool.memberships)
    assert watched.valid == [True]


async def test_a_file_that_never_rests_is_taken_as_it_is_after_a_while(path: Path) -> None:
    counter = 0

    async def changes_always(seconds: float) -> None:
        nonlocal counter
        counter += 1
        path.write_text(TWO + f"# {counter}\n")
        await asyncio.sleep(seconds / 10)

    watched = Watched(path, sleep=changes_always)
    async with running(watched.discovery.run()):
        await watched.becomes("a", "b")


async def test_a_removed_entry_leaves_and_a_draining_one_stays_without_new_picks(path: Path) -> None:
    path.write_text(TWO)
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a", "b")
        endpoint = watched.pool.endpoints[0]
        watched.pool.count_pick(endpoint)
        replace(path, file_of(entry("a", "10.0.0.1", "draining: true"), entry("b", "10.0.0.2")))
        await eventually(lambda: endpoint.state is EndpointState.DRAINING)
        assert [ready.spec.name for ready in watched.pool.ready] == ["b"]

        replace(path, file_of(entry("b", "10.0.0.2")))
        await watched.becomes("b")
        assert watched.pool.leaving == (endpoint,)
        assert endpoint.in_flight_requests == 1


async def test_an_entry_that_changes_keeps_its_counts(path: Path) -> None:
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        endpoint = watched.pool.endpoints[0]
        watched.pool.count_pick(endpoint)
        replace(path, file_of(entry("renamed", "10.0.0.1", "weight: 3")))
        await watched.becomes("renamed")

    assert watched.pool.endpoints == (endpoint,)
    assert (endpoint.spec.weight, endpoint.in_flight_requests) == (3.0, 1)


# ── broken files ──


async def test_a_broken_file_keeps_the_last_good_state_and_is_told_once(path: Path) -> None:
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        replace(path, "endpoints: [")
        await eventually(lambda: watched.valid == [True, False])
        replace(path, "endpoints: [ ")
        await asyncio.sleep(0.3)
        assert watched.pool.names == ["a"]
        assert watched.events == ["endpoints_file_refused"]
        assert watched.lines[0]["log_level"] == "error"
        assert watched.lines[0]["problems"][0].startswith(f"{path}: expected YAML or JSON, found a fault")

        replace(path, file_of(entry("a", "10.0.0.1", "weight: none")))
        await eventually(lambda: len(watched.lines) == 2)
        assert watched.valid == [True, False]

        replace(path, TWO)
        await watched.becomes("a", "b")

    assert watched.valid == [True, False, True]
    assert watched.events == ["endpoints_file_refused", "endpoints_file_refused", "endpoints_file_loaded"]


async def test_going_back_to_the_content_of_before_is_valid_again(path: Path) -> None:
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        replace(path, "endpoints: [")
        await eventually(lambda: watched.valid == [True, False])
        replace(path, ONE)
        await eventually(lambda: watched.valid == [True, False, True])


async def test_a_file_that_is_truncated_before_it_is_written_does_not_empty_the_pool(path: Path) -> None:
    watched = Watched(path)
    async with running(watched.discovery.run()):
        await watched.becomes("a")
        path.write_text("")
        await eventually(lambda: watched.events[-1:] == ["endpoints_file_refused"])
        assert watched.pool.names == ["a"]
        path.write_text(TWO)
        await watched.becomes("a", "b")


async def test_a_deleted_file_keeps_the_last_good_state_until_it_comes_back(path: Path) -> None:
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        path.unlink()
        await eventually(lambda: watched.valid == [True, False])
        await asyncio.sleep(0.2)
        assert watched.pool.names == ["a"]
        assert watched.events == ["endpoints_file_refused"]

        path.write_text(ONE)
        await eventually(lambda: watched.valid == [True, False, True])

    assert watched.events == ["endpoints_file_refused", "endpoints_file_loaded"]


async def test_the_line_about_a_broken_file_is_bounded(path: Path) -> None:
    watched = Watched(path)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        replace(path, "endpoints:\n" + "- {}\n" * 100)
        await eventually(lambda: watched.lines)

    assert len(watched.lines[0]["problems"]) == 10
    assert watched.lines[0]["problems_total"] == 300
    assert watched.lines[0]["kept_entries"] == 1


async def test_a_large_file_does_not_hold_up_the_event_loop(path: Path) -> None:
    """It is read in a thread of its own, entry by entry."""
    reading: Counter[int] = Counter()

    def known_engine(name: str) -> str:
        reading[threading.get_ident()] += 1
        return name

    watched = Watched(path, known_engine=known_engine)
    addresses = (f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(5000))
    large = file_of(*(entry(f"e{i}", address, "engine: vllm") for i, address in enumerate(addresses)))

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        replace(path, large)
        await eventually(lambda: len(watched.pool.endpoints) == 5000)

    assert reading.total() >= 5000
    assert threading.get_ident() not in reading


# ── hostnames ──


def found(*ipv4: str, ttl_s: float = 1.0) -> Resolution:
    return Resolution(ipv4=ipv4, ipv6=(), ttl_s=ttl_s)


FAILED = Resolution(ipv4=None, ipv6=None, reason="timeout")
GONE = Resolution(ipv4=(), ipv6=(), reason="the name does not exist")


async def test_every_address_of_a_hostname_is_an_endpoint(path: Path) -> None:
    path.write_text(file_of(entry("gpu", "one.lan", "weight: 2"), entry("many", "two.lan"), entry("ip", "10.0.0.9")))
    resolver = FakeResolver(one_lan=[found("10.0.0.1")], two_lan=[found("10.0.0.2", "10.0.0.3")])
    watched = Watched(path, resolver=resolver)

    async with running(watched.discovery.run()):
        await eventually(lambda: watched.pool.listed)

    assert watched.pool.memberships[0] == watched.pool.memberships[-1]
    assert watched.pool.names == ["gpu", "many@10.0.0.2", "many@10.0.0.3", "ip"]
    assert watched.pool.addresses == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.9:8000"]
    assert watched.pool.endpoints[0].spec.weight == 2.0


async def test_a_name_that_was_never_resolved_is_absent_and_the_others_work(path: Path) -> None:
    path.write_text(file_of(entry("a"), entry("b", "one.lan")))
    watched = Watched(path, resolver=FakeResolver(one_lan=[FAILED, FAILED, found("10.0.0.2")]))

    async with running(watched.discovery.run()):
        await watched.becomes("a", "b")

    assert [spec.name for spec in watched.pool.memberships[0]] == ["a"]
    assert watched.events == ["name_not_resolved", "name_resolved"]


async def test_a_name_that_stops_resolving_keeps_its_last_addresses(path: Path) -> None:
    path.write_text(file_of(entry("a", "one.lan")))
    resolver = FakeResolver(one_lan=[found("10.0.0.1"), GONE, FAILED, found("10.0.0.7")])
    watched = Watched(path, resolver=resolver)

    async with running(watched.discovery.run()):
        await eventually(lambda: watched.pool.addresses == ["10.0.0.7:8000"])

    told = [[spec.address for spec in membership] for membership in watched.pool.memberships]
    assert told[0] == ["10.0.0.1:8000"]
    assert all(addresses in (["10.0.0.1:8000"], ["10.0.0.7:8000"]) for addresses in told)
    assert len(resolver.asked) >= 4


async def test_a_dns_server_that_does_not_answer_holds_up_the_first_listing_for_a_bounded_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.discovery.file.FIRST_NAMES_WAIT_S", 0.05)
    path.write_text(file_of(entry("a"), entry("b", "one.lan")))
    resolver = FakeResolver(one_lan=[FAILED])
    resolver.silent.add("one.lan")
    watched = Watched(path, resolver=resolver)

    async with running(watched.discovery.run()):
        await eventually(lambda: watched.pool.listed)

    assert watched.pool.names == ["a"]


async def test_a_name_is_followed_from_when_it_stands_in_the_file_until_it_is_gone(path: Path) -> None:
    resolver = FakeResolver(one_lan=[found("10.0.0.2")])
    watched = Watched(path, resolver=resolver)

    async with running(watched.discovery.run()):
        await watched.becomes("a")
        replace(path, file_of(entry("a"), entry("b", "one.lan"), entry("c", "one.lan").replace("8000", "8001")))
        await watched.becomes("a", "b", "c")
        await eventually(lambda: len(resolver.asked) >= 3)
        replace(path, ONE)
        await watched.becomes("a")
        await eventually(lambda: not any(t.get_name() == "resolve one.lan" for t in asyncio.all_tasks()))


async def test_cancelling_ends_every_task(path: Path) -> None:
    path.write_text(file_of(entry("a", "one.lan")))
    resolver = FakeResolver(one_lan=[found("10.0.0.1")])
    resolver.silent.add("one.lan")
    watched = Watched(path, resolver=resolver)

    async with running(watched.discovery.run()):
        await eventually(lambda: resolver.asked)

    assert asyncio.all_tasks() == {asyncio.current_task()}
