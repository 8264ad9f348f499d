"""No client may choose where Envoy, or a model server behind it, connects to."""

import pytest

from epp.envoy.listener import PICKER_ONLY_HEADERS
from epp.envoy.options import HostPort
from tests.envoy.rig import start_rig
from tests.fakes.ext_proc_server import Behaviour
from tests.fakes.http1_client import fetch
from tests.fakes.upstream import Upstream
from tests.flows.harness import start_envoy

NOBODY = 1  # a port where nothing listens


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title])
async def test_without_a_picker_a_client_cannot_name_the_destination(spelling: type[str]) -> None:
    async with Upstream() as inside, start_envoy(NOBODY, fail_open=True) as envoy:
        headers = [(spelling(name), inside.endpoint) for name in PICKER_ONLY_HEADERS]
        for request in ({"body": b"x"}, {"method": "GET"}, {"pieces": [b"x", b"y"]}):
            answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", headers=headers * 2, **request)
            assert answer.status == 503

    assert inside.received == []


async def test_with_a_fallback_the_client_still_cannot_name_the_destination() -> None:
    async with (
        Upstream("inside") as inside,
        Upstream("fallback") as fallback,
        start_envoy(NOBODY, fail_open=True, fallback=[HostPort.parse(fallback.endpoint)]) as envoy,
    ):
        headers = [(name, inside.endpoint) for name in PICKER_ONLY_HEADERS]
        answer = await fetch(envoy.listener().host, envoy.listener().port, "/x", headers=headers, body=b"x")

    assert answer.json()["server"] == "fallback"
    assert inside.received == []


async def test_neither_the_picker_nor_the_endpoint_sees_a_clients_copy() -> None:
    async with Upstream() as upstream, start_rig(Behaviour(destination=upstream.endpoint)) as rig:
        answer = await rig.fetch(body=b"{}", headers=[(name, "6.6.6.6:1") for name in PICKER_ONLY_HEADERS])
        seen = rig.picker.streams[0].headers

    assert not seen.keys() & set(PICKER_ONLY_HEADERS)
    arrived = {name: value for name, value in answer.json()["headers"] if name in PICKER_ONLY_HEADERS}
    assert arrived == {"x-gateway-destination-endpoint": upstream.endpoint}
