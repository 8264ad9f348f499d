"""From bytes to events: wherever the bytes are cut, and whatever else comes."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.discovery.kubernetes.api_errors import ApiError, BusyError, GoneError, UnexpectedAnswerError
from epp.discovery.kubernetes.watch_stream import Bookmark, Changed, Deleted, Event, Failed, Unknown, WatchStream, meta_of
from tests.fakes.kube_api_watch import line_of, status_object
from tests.fakes.kube_objects import pod

POD = pod("a", uid="u-a", labels={"text": "with a \u2028 separator and an ä"})
LINES = (
    line_of("ADDED", POD)
    + line_of("MODIFIED", POD)
    + line_of("DELETED", POD)
    + line_of("BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    + line_of("SYNC", {})
)


def failure(line: bytes) -> ApiError:
    (event,) = WatchStream().feed(line)
    assert isinstance(event, Failed)
    return event.error


def raw_of(found: Any) -> bytes:
    return json.dumps(found).encode()


def test_each_line_is_an_event() -> None:
    assert WatchStream().feed(LINES) == [
        Changed(raw_of(POD)),
        Changed(raw_of(POD)),
        Deleted(raw_of(POD)),
        Bookmark("77"),
        Unknown("SYNC"),
    ]


@given(st.lists(st.integers(0, len(LINES)), max_size=12))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = WatchStream()
    events: list[Event] = []
    at = [0, *sorted(cuts), len(LINES)]
    for start, end in itertools.pairwise(at):
        events += stream.feed(LINES[start:end])
    assert events == WatchStream().feed(LINES)
    assert not stream.in_a_line


def test_an_event_that_is_not_whole_waits_for_its_rest() -> None:
    stream = WatchStream()
    line = line_of("ADDED", POD)
    assert stream.feed(line[:50]) == []
    assert stream.in_a_line
    assert stream.feed(line[50:]) == [Changed(raw_of(POD))]
    assert not stream.in_a_line


def test_empty_lines_and_carriage_returns_are_nothing() -> None:
    stream = WatchStream()
    assert stream.feed(b"\n\r\n" + line_of("ADDED", {"metadata": {}})[:-1] + b"\r\n\n") == [Changed(b'{"metadata": {}}')]
    assert not stream.in_a_line


def test_an_error_event_410_says_that_the_version_is_gone() -> None:
    error = failure(line_of("ERROR", status_object(410, "Expired", "too old resource version: 1 (2)")))
    assert isinstance(error, GoneError)
    assert error.status == 410
    assert str(error) == "410 Expired: too old resource version: 1 (2)"


def test_an_expired_version_is_gone_also_without_a_code() -> None:
    assert isinstance(failure(line_of("ERROR", {"kind": "Status", "reason": "Expired"})), GoneError)


def test_an_error_event_500_is_a_busy_server() -> None:
    error = failure(line_of("ERROR", status_object(500, "InternalError", "etcd\nleader changed")))
    assert isinstance(error, BusyError)
    assert error.message == "etcd leader changed"


@pytest.mark.parametrize(
    "line",
    [
        b"<html>bad gateway</html>\n",
        b'{"type":"ADDED"}\n',
        b'{"object":{}}\n',
        b"[]\n",
        b'{"type":"ADDED","object":{\n',
        b"\xff\xfe\n",
        b'{"type":"BOOKMARK","object":{"metadata":{}}}\n',
        b'{"type":"BOOKMARK","object":7}\n',
    ],
)
def test_a_line_that_is_no_event_ends_the_watch(line: bytes) -> None:
    error = failure(line)
    assert isinstance(error, UnexpectedAnswerError)
    assert "expected an event of a watch, found" in str(error)


def test_what_comes_after_a_failure_is_not_read() -> None:
    events = WatchStream().feed(line_of("ADDED", POD) + b"garbage\n" + line_of("DELETED", POD))
    assert [type(event) for event in events] == [Changed, Failed]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    stream = WatchStream(line_max_bytes=1000)
    assert stream.feed(b"x" * 900) == []
    (event,) = stream.feed(b"x" * 200)
    assert isinstance(event, Failed)
    assert "more than 1000 bytes" in str(event.error)


def test_the_metadata_of_any_object_can_be_read() -> None:
    meta = meta_of(raw_of(POD | {"status": 5}))
    assert meta is not None
    assert (meta.name, meta.uid, meta.resource_version) == ("a", "u-a", "")
    assert meta_of(b'{"metadata": 7}') is None
    assert meta_of(b"\xff") is None


def test_an_object_that_is_nested_deeper_than_can_be_read_breaks_nothing() -> None:
    deep = b"[" * 3000 + b"]" * 3000
    (event,) = WatchStream().feed(b'{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u"},"x":' + deep + b"}}\n")
    assert isinstance(event, (Failed, Changed))
