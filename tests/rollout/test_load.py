"""What the load's client sees of answers that are whole, cut, or none."""

from itertools import repeat

import pytest

from epp.sim.config import SimConfig
from epp.sim.server import SimServer
from tests.fakes.upstream import Upstream
from tests.flows.epp_process import wait_until
from tests.rollout.asks import MODEL, Ask
from tests.rollout.load import Load
from tests.rollout.tally import Ending

SHORT, LONG = Ask(500, 2), Ask(500, 100_000)


def server() -> SimServer:
    return SimServer(SimConfig(name="a", decode_tokens_per_s=1000.0, served_model_names=(MODEL,), kv_blocks=100_000))


async def test_a_whole_answer_is_counted_as_whole() -> None:
    async with server() as one, Load(one.url, repeat(SHORT), rate_per_s=50.0) as load:
        await load.more(5)

    assert load.tally.failed == 0
    assert load.tally.sent == load.tally.whole >= 5
    assert load.failures == []


async def test_leaving_the_load_waits_for_the_answers_that_are_on_their_way() -> None:
    async with server() as one:
        async with Load(one.url, repeat(Ask(500, 200)), rate_per_s=50.0) as load:
            await load.until_streams("a", left_s=0.0, count=3)
        assert one.requests_received == load.tally.whole >= 3
        assert load.streams == set()


async def test_answers_that_end_in_the_middle_are_cut_by_the_server_that_gave_them() -> None:
    async with server() as one, Load(one.url, repeat(LONG), rate_per_s=50.0) as load:
        await load.until_streams("a", left_s=1.0, count=2)
        one.close_listeners()
        one.cut_connections()
        await wait_until(lambda: load.tally.cut >= 2, "the answers to be cut")

    assert {failure.server for failure in load.failures if failure.ending is Ending.CUT} == {"a"}
    assert load.tally.whole == 0


@pytest.mark.parametrize(("status", "seen"), [(500, "500 by a model server"), (503, "503 by a model server")])
async def test_an_error_status_is_a_lost_request(status: int, seen: str) -> None:
    async with server() as one:
        one.faults.answer_status = status
        async with Load(one.url, repeat(SHORT), rate_per_s=50.0) as load:
            await wait_until(lambda: load.tally.lost >= 2, "answers")

    assert load.tally.sent == load.tally.lost
    assert set(load.tally.faults) == {f"lost: {seen}"}


async def test_a_refused_connection_is_a_lost_request() -> None:
    async with Upstream() as nobody:
        url = f"http://{nobody.endpoint}"
    async with Load(url, repeat(SHORT), rate_per_s=50.0) as load:
        await wait_until(lambda: load.tally.lost >= 2, "refusals")

    assert load.tally.sent == load.tally.lost
