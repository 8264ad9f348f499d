"""What real servers show of their load, and what they do at SIGTERM, as `tests/engines/README.md` has it."""

import click
import pytest

from epp.scrape.catalog import EngineCatalog
from tests.engines.servers import LLAMACPP, SHUTDOWN_TIMEOUT, VLLM_CPU, RealServer
from tests.engines.watch import Aftermath, Watcher, start_watched
from tests.flows.epp_process import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

WAITING = 2


async def until_load(watcher: Watcher, waiting: int, running: int) -> None:
    async def is_so() -> bool:
        metrics = await watcher.load()
        return (metrics.waiting_requests, metrics.running_requests) == (waiting, running)

    await wait_until(is_so, f"{waiting} waiting and {running} running requests on the page", 120.0)


async def aftermath_of(server: RealServer, capsys: pytest.CaptureFixture[str], flags: str = "") -> Aftermath:
    """What SIGTERM does to a full batch, and to some that wait."""
    async with start_watched(server) as watcher, watcher.streams(server.batch + WAITING, server.slow_tokens) as streams:
        await until_load(watcher, WAITING, server.batch)
        seen = await watcher.until_ended(streams)
    with capsys.disabled():
        click.echo("\n".join(["", f"SIGTERM, {server.version} {flags}".rstrip(), *seen.lines()]))
    return seen


@pytest.mark.parametrize(
    ("server", "not_told"),
    [pytest.param(LLAMACPP, ("KV-cache usage",), id="llamacpp"), pytest.param(VLLM_CPU, (), id="vllm")],
)
async def test_the_page_is_recognised_and_tells_when_the_server_is_busy_and_when_idle(
    server: RealServer, not_told: tuple[str, ...]
) -> None:
    async with start_watched(server) as watcher:
        engine = EngineCatalog().recognise(*await watcher.page())
        assert engine is not None
        assert engine.name == server.engine
        assert engine.missing(await watcher.load()) == not_told
        await until_load(watcher, 0, 0)
        async with watcher.streams(server.batch + WAITING, server.slow_tokens):
            await until_load(watcher, WAITING, server.batch)
        # The clients have gone away.
        await until_load(watcher, 0, 0)


async def test_llamacpp_drops_everything_at_sigterm(capsys: pytest.CaptureFixture[str]) -> None:
    seen = await aftermath_of(LLAMACPP, capsys)

    assert "whole" not in seen.streams
    assert seen.arriving["200"] == 0
    assert seen.arriving["refused"] > 0


async def test_vllm_ends_no_answer_whole_at_sigterm(capsys: pytest.CaptureFixture[str]) -> None:
    """Sometimes all are aborted at once, sometimes they hang until their clients give up."""
    seen = await aftermath_of(VLLM_CPU, capsys)

    assert "whole" not in seen.streams
    assert seen.arriving["200"] == 0


async def test_vllm_with_a_shutdown_timeout_ends_what_it_has_and_answers_500_to_what_comes_while_it_looks_healthy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = await aftermath_of(VLLM_CPU.with_flags(*SHUTDOWN_TIMEOUT), capsys, " ".join(SHUTDOWN_TIMEOUT))

    assert seen.streams.keys() == {"whole"}
    assert seen.arriving["200"] == 0
    assert seen.arriving["500"] > 0
    assert seen.health["200"] > 0
    assert seen.loads[0] == (WAITING, VLLM_CPU.batch)
