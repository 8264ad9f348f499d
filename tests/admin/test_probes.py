"""`/healthz` and `/readyz`."""

import pytest

from epp.lifecycle import Phase
from tests.admin.running import Admin

WHY = {
    Phase.STARTING: "the pool is not listed yet, or the first round of scrapes has not ended",
    Phase.DRAINING: "the process is shutting down",
    Phase.STOPPED: "stopped serving",
}


@pytest.mark.parametrize(
    ("phase", "live", "ready"),
    [(Phase.STARTING, 200, 503), (Phase.SERVING, 200, 200), (Phase.DRAINING, 200, 503), (Phase.STOPPED, 503, 503)],
)
async def test_liveness_stays_through_the_drain_and_readiness_is_for_serving_alone(phase: Phase, live: int, ready: int) -> None:
    admin = Admin()
    admin.lifecycle.enter(phase)
    async with admin.serving():
        async with admin.client.get("/healthz") as answer:
            assert answer.status == live
        async with admin.client.get("/readyz") as answer:
            assert answer.status == ready
            text = await answer.text()

    assert text == "ready\n" if ready == 200 else (phase.value in text and WHY[phase] in text)


async def test_probes_answer_head_without_a_body() -> None:
    async with Admin().serving() as admin, admin.client.head("/readyz") as answer:
        assert answer.status == 503
        assert await answer.read() == b""
