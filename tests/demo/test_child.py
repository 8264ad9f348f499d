"""Child processes of the demo, with a real `epp sim`."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epp.demo.child import Child, ChildError
from tests.demo.ports import kept_free
from tests.patience import PATIENCE_S

LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    child = Child("server", log_file=tmp_path / "server.log")
    yield child
    await child.gone()


async def test_a_child_starts_says_its_line_and_ends_at_sigterm(child: Child) -> None:
    await child.start(["sim", "--engine", "vllm", "--port", "0"])
    found = await child.until_line(LISTENING, PATIENCE_S)

    assert int(found[1]) > 0
    assert child.running
    child.check_alive()
    assert await child.terminate(PATIENCE_S) == "exit code 0"
    with pytest.raises(ChildError, match="server: expected to run, found exit code 0"):
        child.check_alive()


async def test_a_child_that_was_killed_starts_again_and_only_its_new_lines_count(child: Child) -> None:
    await child.start(["sim", "--port", "0"])
    port = (await child.until_line(LISTENING, PATIENCE_S))[1]
    await child.gone()
    assert await child.terminate(1) == "SIGKILL"

    async with kept_free(int(port)):
        await child.start(["sim", "--port", port])

        assert (await child.until_line(LISTENING, PATIENCE_S))[1] == port


async def test_a_child_that_does_not_start_shows_the_end_of_its_log(child: Child) -> None:
    await child.start(["sim", "--engine", "abacus"])

    with pytest.raises(ChildError, match=r"(?s)server: expected to run, found exit code 2; its log ends:.*abacus"):
        await child.until_line(LISTENING, PATIENCE_S)


async def test_a_child_that_stays_silent_is_given_up(child: Child) -> None:
    await child.start(["sim", "--port", "0"])

    with pytest.raises(ChildError, match=r"expected a line like 'never' within 0\.1 s"):
        await child.until_line(re.compile("never"), 0.1)


async def test_flags_in_the_environment_do_not_reach_a_child(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPP_GRPC_PORT", "nonsense")
    await child.start(["serve", "--endpoint", "127.0.0.1:1", "--host", "127.0.0.1", "--grpc-port", "0",
                       "--grpc-health-port", "0", "--metrics-port", "0", "--drain-timeout", "0s"])  # fmt: skip

    await child.until_line(re.compile("^listening grpc=", re.MULTILINE), PATIENCE_S)
    assert await child.terminate(PATIENCE_S) == "exit code 0"


async def test_a_child_that_was_never_started_is_easy_to_end(child: Child) -> None:
    await child.gone()

    assert await child.terminate(1) == "never started"


async def test_any_program_can_be_a_child_with_the_variables_that_are_given_alone(child: Child) -> None:
    await child.run(["sh", "-c", "echo said $WORD, home ${HOME:-unset}"], {"PATH": "/usr/bin:/bin", "WORD": "so"})

    await child.until_line(re.compile("said so, home unset"), PATIENCE_S)
    assert child.pid is not None
    assert await child.terminate(PATIENCE_S) in {"exit code 0", "SIGTERM"}
