"""The dashboard in a real browser, against a real server."""

import re
from importlib.resources import files
from typing import Any

import pytest

from epp.admin.dashboard import content_security_policy
from epp.pool.endpoint import EndpointSpec, endpoint_address
from tests.admin.browser import Tab, browser_tab
from tests.admin.running import Admin, serving
from tests.fakes.pool import spec, tell

EVIL = "<img src=x onerror=alert(1)>"
PAGE = files("epp.admin").joinpath("dashboard.html").read_text(encoding="utf-8")
pytestmark = pytest.mark.timeout(420)  # a browser starts slowly on a busy machine
ROWS = "[...document.querySelectorAll('#endpoints > tr')].map(row => row.innerText)"


def pick(number: int, **changes: Any) -> dict[str, Any]:
    """One decision between two endpoints."""
    candidates = [
        {"endpoint": "10.0.0.1:8000", "scores": {"queue-scorer": 1.0}, "total": 1.0},
        {"endpoint": "10.0.0.2:8000", "scores": {"queue-scorer": 0.25}, "total": 0.25},
    ]
    entry = {"request_id": f"request-{number}", "at": 1.7e9 + number, "model": "llama", "endpoints": ["10.0.0.1:8000"]}
    rest = {"duration_s": 0.000031, "candidates": candidates, "filtered": [{"endpoint": "10.0.0.3:8000", "by": "health"}]}
    return {**entry, **rest, "error": None, **changes}


def fill(admin: Admin) -> None:
    admin.pool.sync(
        [
            spec(1, name="gpu-a", engine="vllm"),
            spec(2, name=EVIL, draining=True),
            EndpointSpec(address=endpoint_address("fd00::7", 8000), name="gpu-c", not_ready_reason="pod is not Ready"),
        ]
    )
    first = admin.pool.endpoints[0]
    admin.pool.count_pick(first)
    tell(first, admin.clock, waiting_requests=2.0, running_requests=13.0, kv_cache_usage_ratio=0.25)
    first.scrape_interval_s = 0.05
    refused = {"code": "no_endpoints", "message": "no endpoint is ready"}
    admin.picks = [
        pick(2, model=EVIL),
        pick(1, endpoints=[], candidates=[], filtered=[], error=refused),
        pick(0, model=None),
    ]


async def opened(tab: Tab, admin: Admin, **view: Any) -> None:
    await tab.open(admin.url, **view)
    await tab.until("document.querySelectorAll('#endpoints > tr').length === 3")


async def test_the_table_shows_every_endpoint_with_state_reason_and_load() -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin)
        first, second, third = await tab.evaluate(ROWS)
        summary = await tab.evaluate("document.querySelector('#summary').innerText.split('\\n').filter(Boolean)")
        headers = await tab.evaluate("[...document.querySelectorAll('#endpoint-columns > th')].map(th => th.scope)")
        kv_width = await tab.evaluate("document.querySelector('.fill').style.width")
        # Not at once where a later refresh has failed, since the page waits 5 s for an answer and no longer.
        await tab.until("document.querySelector('#phase').innerText === 'ready'")

    for text in ("gpu-a", "10.0.0.1:8000", "vllm", "ready", "13", "25 %", "50.0 ms"):
        assert text in first
    assert "draining" in second
    assert "marked as draining" in second
    assert "[fd00::7]:8000" in third
    assert "unready" in third
    assert "pod is not Ready" in third
    assert "–" in third
    assert dict(zip(summary[::2], summary[1::2], strict=True))["Ready"] == "1"
    assert headers == ["col"] * 10
    assert kv_width == "25%"


async def test_names_that_look_like_html_are_shown_as_text_and_nothing_runs() -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin)
        await tab.until("document.querySelectorAll('#picks > tr').length > 0")
        endpoints = await tab.evaluate("document.querySelector('#endpoints').innerText")
        picks = await tab.evaluate("document.querySelector('#picks').innerText")
        images = await tab.evaluate("document.querySelectorAll('img').length")

        assert EVIL in endpoints
        assert EVIL in picks
        assert images == 0
        assert tab.complaints == []


async def test_the_page_asks_only_this_port_for_only_the_api() -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin)
        asked = [url for url in tab.requested if not url.startswith("data:")]

    assert asked
    assert {url.removeprefix(admin.url).split("?")[0] for url in asked} == {"/", "/api/v1/pool", "/api/v1/picks"}


async def test_scores_open_on_a_click_and_stay_open_over_refreshes() -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin)
        await tab.until("document.querySelector('#picks button') !== null")
        await tab.evaluate("document.querySelector('#picks button').click()")
        scores = await tab.evaluate("document.querySelector('.scores table').innerText")
        admin.picks.insert(0, pick(9))
        await tab.until("document.querySelector('#picks').innerText.includes('request-9')")
        still_open = await tab.evaluate("document.querySelector('#picks button[aria-expanded=true]') !== null")
        refused = await tab.evaluate("document.querySelector('#picks').innerText.includes('no_endpoints')")

    for text in ("Candidate", "queue-scorer", "10.0.0.1:8000 (chosen)", "0.250", "left out by health"):
        assert text in scores
    assert still_open
    assert refused


async def test_a_change_of_the_pool_shows_within_seconds() -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin)

        admin.pool.sync([spec(7, name="newcomer")])

        await tab.until("document.querySelector('#endpoints').innerText.includes('newcomer')")
        # gpu-a still holds a request, so it stays and is marked.
        rows = await tab.evaluate(ROWS)
    assert [("newcomer" in row, "draining, left" in row) for row in rows] == [(True, False), (False, True)]


async def test_the_page_says_when_the_picker_no_longer_answers() -> None:
    async with browser_tab() as tab:
        async with serving() as admin:
            fill(admin)
            await opened(tab, admin)
        await tab.until("!document.querySelector('#trouble').hidden")

        assert "does not answer" in await tab.evaluate("document.querySelector('#trouble').innerText")
        assert await tab.evaluate("document.querySelector('#phase').innerText") == "no answer"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
async def test_it_fits_the_window_and_its_text_can_be_read(width: int, dark: bool) -> None:
    async with serving() as admin, browser_tab() as tab:
        fill(admin)
        await opened(tab, admin, width=width, dark=dark)
        overflow = await tab.evaluate("document.scrollingElement.scrollWidth - innerWidth")
        shown = await tab.evaluate("document.querySelector('#endpoints > tr').getBoundingClientRect().width <= innerWidth")
        weakest = await tab.evaluate(WEAKEST_CONTRAST)

    assert overflow <= 0
    assert shown
    # WCAG 2.2, 1.4.3: at least 4.5 to 1.
    assert weakest["ratio"] >= 4.5, weakest


WEAKEST_CONTRAST = """(() => {
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  let weakest = { ratio: 21 };
  for (const e of document.querySelectorAll('body *')) {
    if (!e.innerText || !e.offsetParent || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color).slice(0, 3)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < weakest.ratio) weakest = { ratio, text: e.innerText.slice(0, 40) };
  }
  return weakest;
})()"""


async def test_the_policy_names_the_style_and_script_by_their_hashes_and_allows_no_other() -> None:
    async with serving() as admin, admin.client.get("/") as answer:
        policy = answer.headers["content-security-policy"]

    assert policy == content_security_policy(PAGE)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2


def test_the_page_never_makes_markup_of_text_and_names_no_other_host() -> None:
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "http://",
        "https://",
        "//cdn",
    ):
        assert forbidden not in PAGE
    assert " style=" not in PAGE
