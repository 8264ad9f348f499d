"""The picture of a resource survives every way in which a watch, the server or the credentials go wrong."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from epp.discovery.kubernetes.access import find_access
from epp.discovery.kubernetes.api_server import ApiServer
from epp.discovery.kubernetes.reflector import Resource
from epp.discovery.kubernetes.watch_plan import GRACE_S, WATCH_MAX_S, WATCH_MIN_S
from tests.discovery.fakes import eventually
from tests.discovery.kubernetes.following import PODS, Following, following
from tests.fakes.kube_api import FakeKubeApi, kube_api, pods_path
from tests.fakes.kube_objects import pod
from tests.kubernetes.certificates import server_keys

# ── ends of watches ──


async def test_a_watch_that_ends_at_its_time_limit_is_resumed_without_a_list(follows: Following) -> None:
    api = follows.api
    for number in range(4):
        follows.reach_time_limit()
        api.end_watches()
        await follows.watched_again(number + 2)
        assert follows.reflector.fresh_at_s == follows.time.now_s
    api.put_pod(pod("c"))
    await follows.converges()
    assert api.count("list") == 1
    assert follows.observed.endings == ["timed_out"] * 4
    assert follows.time.pauses_s == []


async def test_what_happens_between_two_watches_is_not_lost(follows: Following) -> None:
    api = follows.api
    api.put_pod(pod("c"))
    await follows.converges()
    follows.reach_time_limit()
    api.end_watches()
    api.put_pod(pod("d"))
    api.delete_pod("a")
    await follows.converges()
    assert follows.names == ["b", "c", "d"]
    assert api.count("list") == 1


async def test_a_watch_is_resumed_from_the_last_bookmark(follows: Following) -> None:
    api = follows.api
    api.store.version += 500  # changes elsewhere
    api.send_bookmarks()
    follows.reach_time_limit()
    api.end_watches()
    await eventually(lambda: api.count("watch") == 2)
    assert api.requests[-1].query["resourceVersion"] == str(api.store.version)


async def test_without_bookmarks_old_versions_lead_to_lists_at_most(follows: Following) -> None:
    api = follows.api
    api.bookmarks = False
    follows.reach_time_limit()
    api.compact()
    api.put_pod(pod("c"))
    api.end_watches()
    await follows.converges()
    assert api.count("list") <= 2


async def test_a_bookmark_from_before_tells_that_the_store_went_back_in_time(follows: Following) -> None:
    api = follows.api
    api.store.version -= 2
    api.send_bookmarks()
    await follows.listed_again()
    assert follows.observed.endings == ["gone"]
    await follows.watched_again()
    api.put_pod(pod("c"))
    await follows.converges()


async def test_a_proper_end_before_the_time_limit_leads_to_a_list(follows: Following) -> None:
    follows.api.end_watches()
    follows.api.delete_pod("a")
    await follows.listed_again()
    await follows.converges()
    assert follows.observed.endings == ["early"]


async def test_cuts_in_the_middle_of_a_line_are_routine(follows: Following) -> None:
    """Field report 4: five times in a row."""
    api = follows.api
    for number in range(5):
        api.put_pod(pod(f"p{number}"))
        api.cut_watches(within_a_line=True)
        api.delete_pod(f"p{number}")
        await follows.listed_again(number + 2)
        await api.watched()
    await follows.converges()
    assert follows.observed.endings == ["cut"] * 5
    assert follows.warnings() == []
    assert len([line for line in follows.lines if line["log_level"] != "debug"]) <= 1
    assert len(follows.time.pauses_s) == 5


async def test_a_proper_end_in_the_middle_of_a_line_is_a_cut(follows: Following) -> None:
    follows.reach_time_limit()
    follows.api.send_line(b'{"type":"MODI')
    follows.api.end_watches()
    await follows.listed_again()
    assert follows.observed.endings == ["cut"]


async def test_a_silent_connection_is_left_soon_after_its_time_limit(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.silent = True
    async with following(api) as follows:
        await follows.converges()
        await api.watched()
        api.delete_pod("a")
        api.silent = False
        follows.time.advance(WATCH_MIN_S + GRACE_S - 0.1)
        await asyncio.sleep(0)
        assert api.count("watch") == 1
        follows.time.advance(WATCH_MAX_S - WATCH_MIN_S + 0.2)
        await follows.converges()
        assert follows.observed.endings == ["silent"]
        await api.watched()
        assert len(api.connections) == 1


async def test_events_do_not_keep_a_watch_alive_that_does_not_end(follows: Following) -> None:
    follows.time.advance(WATCH_MAX_S - 1.0)
    follows.api.put_pod(pod("c"))
    await follows.converges()
    follows.time.advance(GRACE_S + 1.1)
    await follows.listed_again()
    assert follows.observed.endings == ["silent"]


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_version_that_is_too_old_leads_to_a_list_at_once(follows: Following, as_event: bool) -> None:
    """410 in both shapes: as the status of the answer, and as an ERROR event."""
    api = follows.api
    api.gone_as_event = as_event
    follows.reach_time_limit()
    api.bookmarks = False
    api.end_watches()
    api.compact()
    await follows.listed_again()
    assert follows.time.pauses_s == []
    assert follows.observed.endings == ["timed_out", "gone"]
    await api.watched()
    api.put_pod(pod("c"))
    await follows.converges()
    assert follows.warnings() == []


async def test_a_version_that_is_always_too_old_is_no_reason_for_a_busy_loop(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.refuse("watch", 410, times=None)
    async with following(api) as follows:
        await eventually(lambda: len(follows.time.pauses_s) >= 20)
        spent_s = follows.time.now_s - 1000.0
    assert api.count("list") <= 25
    assert spent_s > 60.0


async def test_an_error_event_500_leads_to_a_list(follows: Following) -> None:
    follows.api.send_error(500)
    follows.api.delete_pod("a")
    await follows.converges()
    assert follows.observed.endings == ["refused"]
    assert follows.observed.errors == ["busy"]


async def test_a_garbage_line_leads_to_a_list(follows: Following) -> None:
    follows.api.send_line(b"}garbage{\n")
    follows.api.delete_pod("a")
    await follows.converges()
    assert follows.observed.errors == ["unexpected_answer"]
    assert len(follows.warnings()) == 1


async def test_what_came_before_a_garbage_line_counts(follows: Following) -> None:
    follows.api.hold_lists()
    follows.api.delete_pod("a")
    follows.api.send_line(b"}garbage{\n")
    await eventually(lambda: follows.names == ["b"])
    assert follows.api.count("list") <= 2


async def test_a_watch_that_always_fails_is_no_reason_for_a_busy_loop(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.refuse("watch", 500, times=None)
    async with following(api) as follows:
        await eventually(lambda: len(follows.time.pauses_s) >= 20)
        spent_s = follows.time.now_s - 1000.0
        assert follows.is_true()
    assert api.count("list") <= 25
    assert spent_s > 60.0
    (warning,) = follows.warnings()
    assert warning["problem"].startswith("pods in namespace default: expected to watch them, found 500")


async def test_watches_that_are_cut_after_each_event_are_no_reason_for_a_busy_loop(follows: Following) -> None:
    for number in range(12):
        await follows.api.watched()
        follows.api.put_pod(pod("a", restarts=number))
        follows.api.cut_watches()
        await follows.listed_again(number + 2)
    await follows.converges()
    assert sum(follows.time.pauses_s) > 20.0


# ── the server away ──


async def test_the_picture_stays_while_the_server_is_away(follows: Following) -> None:
    api = follows.api
    fresh_at_s = follows.reflector.fresh_at_s
    await api.stop()
    await eventually(lambda: len(follows.time.pauses_s) >= 15)
    assert len(follows.told) == 1
    assert follows.reflector.listed
    assert follows.reflector.fresh_at_s == fresh_at_s
    (warning,) = follows.warnings()
    assert warning["event"] == "kubernetes request fails"
    api.delete_pod("a")
    await api.start()
    await follows.converges()
    assert follows.names == ["b"]
    assert [line["event"] for line in follows.lines if line["log_level"] == "info"] == ["kubernetes request works again"]


async def test_pauses_grow_while_the_server_is_away_and_stay_within_their_limit(follows: Following) -> None:
    await follows.api.stop()
    await eventually(lambda: len(follows.time.pauses_s) >= 30)
    assert max(follows.time.pauses_s) <= 30.0
    assert sum(follows.time.pauses_s[:4]) <= 1.5
    assert sum(follows.time.pauses_s[10:30]) >= 100.0


async def test_a_restarted_server_is_followed_within_a_blink(follows: Following) -> None:
    await follows.api.restart()
    follows.api.put_pod(pod("c"))
    await follows.converges()
    assert sum(follows.time.pauses_s) < 2.0
    assert follows.warnings() == []


# ── no entry ──


@pytest.mark.parametrize(("status", "code"), [(401, "unauthorized"), (403, "forbidden"), (404, "not_found")])
async def test_no_entry_is_told_once_and_so_is_its_end(api: FakeKubeApi, status: int, code: str) -> None:
    api.put_pod(pod("a"))
    api.refuse("list", status, times=None, message="pods is not for you")
    async with following(api) as follows:
        await eventually(lambda: api.count("list") >= 12)
        assert not follows.reflector.listed
        (warning,) = follows.warnings()
        assert warning["error"] == code
        assert "pods in namespace default: expected to list them, found" in warning["problem"]
        assert "pods is not for you" in warning["problem"]
        api.refusals.clear()
        await follows.converges()
        assert [line["event"] for line in follows.lines if line["log_level"] == "info"] == ["kubernetes request works again"]


async def test_a_role_that_lists_but_may_not_watch_is_told_once_and_the_picture_is_kept_by_lists(api: FakeKubeApi) -> None:
    api.refuse("watch", 403, times=None)
    async with following(api) as follows:
        await follows.listed_again(5)
        api.put_pod(pod("a"))
        await follows.converges()
        (warning,) = follows.warnings()
        assert "expected to watch them, found 403" in warning["problem"]
        assert [line for line in follows.lines if line["log_level"] == "info"] == []


async def test_a_kind_that_is_not_installed_means_no_objects_where_that_is_allowed(api: FakeKubeApi) -> None:
    api.absent.add("pods")
    resource = Resource(path=PODS.path, what=PODS.what, kind=PODS.kind, optional=True)
    async with following(api, resource) as follows:
        await eventually(lambda: len(follows.time.pauses_s) >= 3)
        assert follows.reflector.listed
        assert follows.told[0] == {}
        assert all(54.0 <= pause_s <= 66.0 for pause_s in follows.time.pauses_s)
        assert follows.reflector.fresh_at_s is not None
        api.absent.clear()
        api.put_pod(pod("a"))
        await follows.converges()
        api.absent.add("pods")
        api.cut_watches()
        await eventually(lambda: follows.told[-1] == {})
    assert follows.warnings() == []
    assert [line["event"] for line in follows.lines if "not installed" in line["event"]] == [
        "kubernetes kind is not installed"
    ] * 2


async def test_after_the_token_was_rotated_the_watch_goes_on(tmp_path: Path) -> None:
    """Field report 5: only the new token is accepted, and the file has it a little later."""
    async with kube_api() as api:
        token = tmp_path / "token"
        token.write_text("one")
        api.token = "one"
        server = ApiServer(find_access(str(api.kubeconfig(tmp_path, token_file=token)), {}))
        async with following(api, server=server) as follows:
            await follows.converges()
            await api.watched()
            api.token = "two"
            api.cut_watches()
            await eventually(lambda: follows.observed.errors.count("unauthorized") >= 2)
            assert follows.reflector.listed
            token.write_text("two")
            api.put_pod(pod("a"))
            await follows.converges()
            await api.watched()
            assert [warning["error"] for warning in follows.warnings()] == ["unauthorized"]


async def test_after_the_authority_was_rotated_the_watch_goes_on(tmp_path: Path) -> None:
    async with kube_api(tls=True) as api:
        assert api.keys is not None
        authority = tmp_path / "ca.crt"
        authority.write_bytes(api.keys.authority)
        document: dict[str, Any] = json.loads(api.kubeconfig(tmp_path).read_text())
        document["clusters"][0]["cluster"] = {"server": api.url, "certificate-authority": "ca.crt"}
        (tmp_path / "config").write_text(json.dumps(document))
        server = ApiServer(find_access(str(tmp_path / "config"), {}))
        async with following(api, server=server) as follows:
            await follows.converges()
            await api.watched()
            keys = server_keys()
            await api.restart(keys)
            await eventually(lambda: len(follows.observed.errors) >= 3)
            authority.write_bytes(keys.authority)
            api.put_pod(pod("a"))
            await follows.converges()


async def test_a_reflector_ends_by_cancellation_and_leaves_no_connection(api: FakeKubeApi) -> None:
    async with following(api) as follows:
        await follows.converges()
        await api.watched()
    await eventually(lambda: not api.connections)


def test_a_resource_is_named_for_metrics_by_the_end_of_its_path() -> None:
    assert PODS.name == "pods"
    assert PODS.path == pods_path()
