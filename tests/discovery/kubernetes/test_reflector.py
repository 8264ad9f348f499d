"""The picture of a resource follows the API server's, by lists and by events."""

import json

import pytest

from epp.discovery.kubernetes.api_errors import GoneError
from epp.discovery.kubernetes.listing import PAGE_OBJECTS
from epp.discovery.kubernetes.reflector import Resource
from epp.discovery.kubernetes.watch_plan import WATCH_MAX_S, WATCH_MIN_S
from tests.discovery.fakes import eventually
from tests.discovery.kubernetes.following import PODS, Following, api_server, following
from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.kube_objects import pod

# ── lists ──


async def test_the_first_list_is_told_once_and_proves_freshness(follows: Following) -> None:
    assert len(follows.told) == 1
    assert follows.names == ["a", "b"]
    assert follows.reflector.listed
    assert follows.reflector.fresh_at_s == follows.time.now_s
    assert follows.observed.lists == [("pods", 2)]


async def test_nothing_is_listed_before_the_list_came(api: FakeKubeApi) -> None:
    api.hold_lists()
    async with following(api) as follows:
        await eventually(lambda: api.count("list") == 1)
        assert (follows.reflector.listed, follows.reflector.fresh_at_s, follows.told) == (False, None, [])
        api.release_lists()
        await eventually(lambda: follows.reflector.listed)
        assert follows.told == [{}]


async def test_the_list_asks_the_store_itself_and_selects_on_the_server(api: FakeKubeApi) -> None:
    for number in range(50):
        api.put_pod(pod(f"other-{number}", labels={"app": "other"}))
    api.put_pod(pod("mine", labels={"app": "mine"}))
    resource = Resource(
        path=PODS.path, what=PODS.what, kind=PODS.kind, label_selector="app=mine", field_selector="metadata.name!=x"
    )
    async with following(api, resource) as follows:
        await follows.converges()
        await api.watched()
        api.put_pod(pod("other-1", labels={"app": "mine"}))
        api.put_pod(pod("mine", labels={"app": "other"}))
        await follows.converges()
        assert follows.names == ["other-1"]
    first, watch = api.requests
    assert first.query == {"labelSelector": "app=mine", "fieldSelector": "metadata.name!=x", "limit": str(PAGE_OBJECTS)}
    assert watch.query["labelSelector"] == "app=mine"
    assert watch.query["fieldSelector"] == "metadata.name!=x"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert WATCH_MIN_S <= int(watch.query["timeoutSeconds"]) <= WATCH_MAX_S


async def test_a_long_list_is_read_page_by_page_and_told_once(api: FakeKubeApi) -> None:
    for number in range(2 * PAGE_OBJECTS + 1):
        api.put_pod(pod(f"p{number}"))
    async with following(api) as follows:
        await follows.converges()
        assert len(follows.told) == 1
        assert api.count("list") == 3


async def test_a_list_that_becomes_too_old_while_it_is_read_is_begun_again_once(api: FakeKubeApi) -> None:
    for number in range(PAGE_OBJECTS + 1):
        api.put_pod(pod(f"p{number}"))
    api.refuse("list", 410, after=1)
    async with following(api) as follows:
        await follows.converges()
        assert api.count("list") == 4
        assert follows.time.pauses_s == []


async def test_the_pages_of_a_list_are_of_one_moment_or_refused(api: FakeKubeApi) -> None:
    for number in range(PAGE_OBJECTS + 1):
        api.put_pod(pod(f"p{number:03}"))
    server = api_server(api)
    first = json.loads(await server.get(PODS.path, {"limit": PAGE_OBJECTS}))
    api.delete_pod("p100")
    rest = {"limit": PAGE_OBJECTS, "continue": first["metadata"]["continue"]}
    assert [found["metadata"]["name"] for found in json.loads(await server.get(PODS.path, rest))["items"]] == ["p100"]
    api.compact()
    with pytest.raises(GoneError):
        await server.get(PODS.path, rest)
    await server.aclose()


async def test_a_list_that_is_too_old_again_and_again_is_not_read_in_a_hurry(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.refuse("list", 410, times=20)
    async with following(api) as follows:
        await follows.converges()
    assert api.count("list") == 21
    assert len(follows.time.pauses_s) == 10


async def test_a_server_error_with_retry_after_is_left_alone_for_so_long(api: FakeKubeApi) -> None:
    api.refuse("list", 503, headers={"retry-after": "7"})
    async with following(api) as follows:
        await follows.converges()
        assert 7.0 <= follows.time.pauses_s[0] <= 7.1
        assert follows.observed.errors == ["busy"]
        assert follows.warnings() == []


async def test_a_list_that_is_cut_is_read_again(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.refuse("list", 200, cut_after_bytes=100)
    async with following(api) as follows:
        await follows.converges()
        assert follows.told == [follows.truth]


@pytest.mark.parametrize("body", [b"<html>a proxy's page</html>", b"{}", b"[]", b'{"metadata":{},"items":7}', b""])
async def test_an_answer_that_is_no_list_is_told_and_changes_nothing(follows: Following, body: bytes) -> None:
    follows.api.refuse("list", 200, body=body, times=3)
    follows.api.cut_watches()
    await follows.listed_again()
    assert follows.is_true()
    assert all(told == follows.truth for told in follows.told)
    (warning,) = follows.warnings()
    assert warning["problem"] == "pods in namespace default: expected to list them, found 200 an answer that is no list"


async def test_what_a_new_list_does_not_name_is_gone(follows: Following) -> None:
    """Field report 3: a pod is deleted while no watch runs."""
    follows.api.hold_lists()
    follows.api.cut_watches()
    await eventually(lambda: follows.api.count("list") == 2)
    follows.api.delete_pod("a")
    follows.api.release_lists()
    await follows.converges()
    assert follows.names == ["b"]


async def test_after_an_etcd_restored_from_a_backup_the_list_is_the_truth_though_older(follows: Following) -> None:
    api, backup = follows.api, follows.api.store.backup()
    for number in range(5):
        api.put_pod(pod(f"later-{number}"))
    await follows.converges()
    await api.restore(backup)
    await follows.converges()
    assert follows.names == ["a", "b"]
    await api.watched()
    api.put_pod(pod("c"))
    await follows.converges()
    assert follows.names == ["a", "b", "c"]


# ── events ──


async def test_events_are_told_at_once(follows: Following) -> None:
    api = follows.api
    api.put_pod(pod("c"))
    await follows.converges()
    api.put_pod(pod("a", ready=False))
    await follows.converges()
    api.delete_pod("b")
    await follows.converges()
    assert follows.names == ["a", "c"]
    assert len(follows.told) == 4
    assert api.count("list") == 1


async def test_events_that_come_together_are_told_together(follows: Following) -> None:
    for number in range(40):
        follows.api.put_pod(pod(f"p{number}"))
    await follows.converges()
    assert len(follows.told) == 2


async def test_a_pod_that_comes_back_under_its_name_is_another_one(follows: Following) -> None:
    """Field report 9: deleted and added again back to back, 200 times."""
    for _ in range(200):
        follows.api.delete_pod("a")
        follows.api.put_pod(pod("a"))
    await follows.converges()
    assert follows.names == ["a", "b"]
    assert follows.api.count("list") == 1


async def test_a_deletion_mark_is_an_event_like_any_other(follows: Following) -> None:
    follows.api.put_pod(pod("a", deletion_timestamp="2026-01-02T03:04:05Z"))
    await follows.converges()


async def test_a_bookmark_proves_freshness_and_is_no_change(follows: Following) -> None:
    follows.time.advance(20.0)
    follows.api.send_bookmarks()
    await eventually(lambda: follows.reflector.fresh_at_s == follows.time.now_s)
    assert len(follows.told) == 1


async def test_an_event_of_an_unknown_type_is_passed_over_with_one_line(follows: Following) -> None:
    for _ in range(3):
        follows.api.send_event("SYNCED", {"any": "thing"})
    follows.api.put_pod(pod("c"))
    await follows.converges()
    assert follows.api.count("list") == 1
    (line,) = [line for line in follows.lines if "unknown type" in line["event"]]
    assert line["type"] == "SYNCED"


async def test_an_object_that_cannot_be_decoded_does_not_hurt_the_others(follows: Following) -> None:
    odd = pod("odd") | {"status": {"phase": 5}}
    follows.api.put_pod(odd)
    follows.api.put_pod(odd)
    follows.api.put_pod(pod("c"))
    await eventually(lambda: follows.names == ["a", "b", "c"])
    (warning,) = follows.warnings()
    assert warning["problem"].startswith(
        'pods in namespace default: "odd": expected an object that can be decoded, found: Expected `str'
    )
    follows.api.put_pod(pod("odd"))
    await follows.converges()
    assert follows.api.count("list") == 1


async def test_an_object_in_a_list_that_cannot_be_decoded_does_not_hurt_the_others(api: FakeKubeApi) -> None:
    api.put_pod(pod("a"))
    api.put_pod(pod("odd") | {"status": {"phase": 5}})
    async with following(api) as follows:
        await eventually(lambda: follows.names == ["a"])
        await api.watched()
        api.cut_watches()
        await follows.listed_again()
        assert [warning["name"] for warning in follows.warnings()] == ["odd"]


async def test_of_an_object_that_cannot_be_decoded_any_more_the_last_good_state_stays_until_it_is_deleted(
    follows: Following,
) -> None:
    good = follows.told[-1]
    follows.api.put_pod(pod("a") | {"status": {"phase": 5}})
    await eventually(follows.warnings)
    follows.api.cut_watches()
    await follows.listed_again()
    assert follows.told[-1] == good
    await follows.api.watched()
    follows.api.delete_pod("a")
    await follows.converges()
    assert follows.names == ["b"]


async def test_an_object_without_metadata_is_passed_over(follows: Following) -> None:
    follows.api.send_event("MODIFIED", {"kind": "Pod"})
    follows.api.put_pod(pod("c"))
    await follows.converges()
    assert follows.api.count("list") == 1


async def test_a_deletion_of_nobody_knows_what_leads_to_a_list(follows: Following) -> None:
    follows.api.send_event("DELETED", {"kind": "Pod"})
    await follows.listed_again()
    assert follows.is_true()
