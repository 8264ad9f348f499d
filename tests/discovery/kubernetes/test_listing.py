"""Lists that do not end."""

import json
from typing import Any

import pytest

from epp.discovery.kubernetes import listing
from epp.discovery.kubernetes.api_errors import UnexpectedAnswerError
from epp.discovery.kubernetes.listing import STALE_PAGES_MAX, Lister
from epp.discovery.kubernetes.objects import Pod
from tests.fakes.kube_objects import pod


async def at_once(_: float) -> None:
    """No pause."""


class Pages:
    """Answers pages, the last one again and again.

    Attributes:
        asked: The `continue` of each request.
    """

    def __init__(self, *pages: tuple[list[Any], str]) -> None:
        self._pages = [json.dumps({"metadata": {"continue": token}, "items": items}).encode() for items, token in pages]
        self.asked: list[Any] = []

    async def get(self, path: str, params: dict[str, str | int]) -> bytes:
        self.asked.append(params.get("continue"))
        return self._pages[min(len(self.asked), len(self._pages)) - 1]

    async def read(self) -> list[str]:
        """The names of all that is listed."""
        lister = Lister(self, "/pods", {}, Pod, on_unreadable=lambda *_: None, sleep=at_once)
        return [found.metadata.name for found in (await lister.read()).objects.values()]


def objects(name: str) -> list[Any]:
    found = pod(name)
    return [found | {"metadata": found["metadata"] | {"uid": name}}]


async def test_a_list_that_goes_on_where_it_was_is_none() -> None:
    pages = Pages((objects("a"), "1"), (objects("b"), "2"), (objects("c"), "1"))
    with pytest.raises(UnexpectedAnswerError, match="goes on at a place where it has been"):
        await pages.read()
    assert pages.asked == [None, "1", "2"]


async def test_a_list_that_repeats_itself_is_none() -> None:
    pages = Pages(*((objects("a"), str(number)) for number in range(100)))
    with pytest.raises(UnexpectedAnswerError, match="brought nothing new"):
        await pages.read()
    assert len(pages.asked) == STALE_PAGES_MAX + 1


async def test_a_list_whose_pages_cannot_be_read_and_repeat_themselves_is_none() -> None:
    pages = Pages(*(([{"metadata": {"name": "odd"}, "status": 5}], str(number)) for number in range(100)))
    with pytest.raises(UnexpectedAnswerError, match="brought nothing new"):
        await pages.read()


async def test_empty_pages_may_be_many() -> None:
    empty: list[tuple[list[Any], str]] = [([], str(number)) for number in range(50)]
    assert await Pages(
        *empty, (objects("a"), "x"), *((page, f"-{token}") for page, token in empty), (objects("b"), "")
    ).read() == [
        "a",
        "b",
    ]


async def test_pages_that_overlap_are_a_list() -> None:
    pages = Pages((objects("a"), "1"), (objects("a"), "2"), (objects("a") + objects("b"), "3"), (objects("c"), ""))
    assert await pages.read() == ["a", "b", "c"]


async def test_a_list_without_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGES_MAX", 20)
    pages = Pages(*((objects(f"p{number}"), str(number)) for number in range(100)))
    with pytest.raises(UnexpectedAnswerError, match="a list longer than 20 pages"):
        await pages.read()
    assert len(pages.asked) == 20
