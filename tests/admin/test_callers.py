"""Who may drain what. The client of these tests is at 127.0.0.1."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from epp.pool.endpoint import EndpointSpec, endpoint_address
from tests.admin.running import Admin, serving
from tests.fakes.pool import spec

OWN = "127.0.0.1:8000"


def fill(admin: Admin) -> None:
    admin.pool.sync([EndpointSpec(address=endpoint_address("127.0.0.1", 8000), name="own"), spec(1)])


async def drain(admin: Admin, endpoint: str = OWN, headers: Mapping[str, str] | None = None) -> int:
    async with admin.client.post(f"/api/v1/endpoints/{endpoint}/drain", headers=headers) as answer:
        body = await answer.json()
        assert (answer.status == 200) != ("error" in body)
        return answer.status


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


async def test_without_a_token_a_caller_speaks_for_its_own_address_only() -> None:
    async with serving() as admin:
        fill(admin)
        assert await drain(admin) == 200
        assert await drain(admin, "10.0.0.1:8000") == 403
        for method, path in (("POST", "undrain"), ("GET", "drained?timeout=0s")):
            async with admin.client.request(method, f"/api/v1/endpoints/10.0.0.1:8000/{path}") as answer:
                assert answer.status == 403
        assert [e.mark is not None for e in admin.pool.endpoints] == [True, False]


async def test_an_ipv4_caller_of_a_socket_for_both_families_is_known_by_its_ipv4_address() -> None:
    """The kernel calls it ::ffff:127.0.0.1."""
    async with serving(host="") as admin:
        fill(admin)
        assert await drain(admin) == 200


async def test_an_ipv6_caller_is_known_by_its_address() -> None:
    async with serving(host="::1") as admin:
        admin.pool.sync([EndpointSpec(address=endpoint_address("::1", 8000), name="own")])
        for written in ("[::1]:8000", "%5B0:0:0:0:0:0:0:1%5D:8000"):
            async with admin.client.post(f"http://[::1]:{admin.port}/api/v1/endpoints/{written}/drain") as answer:
                assert answer.status == 200
                assert (await answer.json())["endpoint"] == "[::1]:8000"


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "x-epp-forwarded"])
async def test_what_a_caller_says_of_itself_counts_for_nothing(header: str) -> None:
    async with serving() as admin:
        fill(admin)
        assert await drain(admin, "10.0.0.1:8000", {header: "10.0.0.1"}) == 403


async def test_the_token_opens_every_endpoint(token_file: Path) -> None:
    async with serving(token_file=token_file) as admin:
        fill(admin)
        assert await drain(admin, "10.0.0.1:8000", {"authorization": "Bearer s3cret"}) == 200
        assert await drain(admin, "10.0.0.1:8000", {"authorization": "bearer  s3cret "}) == 200
        assert await drain(admin, "10.0.0.1:8000", {"authorization": "Basic s3cret"}) == 403


@pytest.mark.parametrize("given", ["Bearer wrong", "Bearer ", "Bearer s3cret2", "Bearer s3crét"])
async def test_a_wrong_token_is_refused_even_for_ones_own_address(token_file: Path, given: str) -> None:
    """So that whoever rotates tokens notices."""
    async with serving(token_file=token_file) as admin:
        fill(admin)
        assert await drain(admin, headers={"authorization": given}) == 403
        assert await drain(admin) == 200


async def test_a_token_where_none_is_configured_gives_nothing_and_takes_nothing() -> None:
    async with serving() as admin:
        fill(admin)
        assert await drain(admin, headers={"authorization": "Bearer s3cret"}) == 200
        assert await drain(admin, "10.0.0.1:8000", {"authorization": "Bearer s3cret"}) == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://[", "null", "", "http://127.0.0.1", "x" * 4000])
async def test_pages_of_other_sites_are_refused(origin: str) -> None:
    async with serving() as admin:
        fill(admin)
        assert await drain(admin, headers={"origin": origin}) == 403
        assert admin.pool.endpoints[0].mark is None


async def test_a_page_of_this_port_is_taken_as_any_caller() -> None:
    async with serving() as admin:
        fill(admin)
        assert await drain(admin, headers={"origin": admin.url, "sec-fetch-site": "same-origin"}) == 200


async def test_what_a_browser_calls_another_site_is_refused_without_an_origin_too() -> None:
    async with serving() as admin:
        fill(admin)
        path = f"/api/v1/endpoints/{OWN}/drained?timeout=0s"
        async with admin.client.get(path, headers={"sec-fetch-site": "cross-site"}) as answer:
            assert answer.status == 403


async def test_the_token_is_in_no_log_and_no_answer(token_file: Path) -> None:
    async with serving(token_file=token_file) as admin:
        fill(admin)
        await drain(admin, "10.0.0.1:8000", {"authorization": "Bearer s3cret"})
        await drain(admin, "10.0.0.1:8000", {"authorization": "Bearer s3cret2"})
        texts = []
        for path in ("/api/v1/config", "/api/v1/pool", "/api/v1/drains", "/metrics"):
            async with admin.client.get(path) as answer:
                texts.append(await answer.text())
    assert "drain call" in admin.logged.getvalue()
    assert "s3cret" not in admin.logged.getvalue() + "".join(texts)
