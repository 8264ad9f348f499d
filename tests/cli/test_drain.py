"""The command `epp drain` as a process: what it waits for, what it says, and that it always ends with 0."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from epp.cli.drain import command
from tests.drain.both_hooks import drain_process
from tests.fakes.metrics_server import Answer, MetricsServer
from tests.fakes.picker_admin import PickerAdmin, picker_admin
from tests.sim.process import ROOT

pytestmark = pytest.mark.flow

QUICK = ("--min-wait", "200ms", "--interval", "100ms")
ENDPOINT = "10.0.0.1:8000"
IDLE_PAGE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
BUSY_PAGE = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"


async def drain(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """The whole log."""
    async with drain_process(folder, *arguments, environment=environment) as hook:
        return await hook.ends()


@pytest.fixture
async def admin() -> AsyncIterator[PickerAdmin]:
    async with picker_admin() as admin:
        yield admin


async def test_a_server_whose_page_lags_is_idle_only_after_its_lag(tmp_path: Path) -> None:
    page = IDLE_PAGE.replace(b"vllm", b"lmdeploy") + b"lmdeploy:num_api_requests_waiting 0\n"
    async with MetricsServer(page) as server:
        began_s = time.monotonic()
        await drain(tmp_path, "--engine", "lmdeploy", "--url", f"http://{server.address}", *QUICK)

        assert time.monotonic() - began_s > 10.0


async def test_a_server_whose_page_stands_still_is_waited_for_by_the_pickers_count(admin: PickerAdmin, tmp_path: Path) -> None:
    page = b"trtllm_num_requests_running 0\ntrtllm_num_requests_waiting 0\n"
    async with MetricsServer(page) as server:
        admin.in_flight = 1
        to = ("--epp-url", admin.url, "--endpoint", ENDPOINT)
        async with drain_process(
            tmp_path, "--engine", "trtllm-serve", "--url", f"http://{server.address}", *to, *QUICK
        ) as hook:
            await hook.says("1 requests")
            admin.in_flight = 0
            assert (await hook.ends()).endswith(": idle\n")


async def test_without_metrics_the_picker_decides(admin: PickerAdmin, tmp_path: Path) -> None:
    admin.in_flight = 2
    async with drain_process(tmp_path, "--epp-url", admin.url, "--endpoint", ENDPOINT, *QUICK) as hook:
        await hook.says(f"{admin.url} about {ENDPOINT}: 2 requests")
        admin.in_flight = 0
        log = await hook.ends()

    assert log.endswith(": idle\n")
    assert admin.calls[0] == f"POST /api/v1/endpoints/{ENDPOINT}/drain?keep=600s"
    assert sum(call.startswith("POST") for call in admin.calls) >= 3, "the call is repeated, for a picker that was restarted"


async def test_with_neither_it_waits_the_minimum_and_says_so(tmp_path: Path) -> None:
    began_s = time.monotonic()

    log = await drain(tmp_path, "--min-wait", "500ms")

    assert time.monotonic() - began_s >= 0.5
    assert "neither an endpoint picker nor the engine tells of requests, so only the minimum was waited" in log


async def test_the_maximum_is_the_most_whatever_the_server_does(tmp_path: Path) -> None:
    async with MetricsServer() as server:
        server.answer = Answer(body=b"x" * 1_000_000, dribble_s=0.01)
        log = await drain(tmp_path, "--engine", "vllm", "--url", f"http://{server.address}", *QUICK, "--max-wait", "1s")

    assert "gives up after 1.0" in log


async def test_every_picker_is_told_of_every_endpoint(admin: PickerAdmin, tmp_path: Path) -> None:
    async with picker_admin() as other:
        await drain(
            tmp_path, "--epp-url", admin.url, "--epp-url", other.url + "/", "--endpoint", ENDPOINT, "--endpoint", "[fd00::7]:1",
            "--keep", "90s", *QUICK,
        )  # fmt: skip

        for picker in (admin, other):
            told = {call.replace("%5B", "[").replace("%5D", "]") for call in picker.calls if call.startswith("POST")}
            assert told == {f"POST /api/v1/endpoints/{each}/drain?keep=90s" for each in (ENDPOINT, "[fd00::7]:1")}


async def test_the_endpoint_is_the_pods_address_with_the_servers_port(admin: PickerAdmin, tmp_path: Path) -> None:
    await drain(tmp_path, "--epp-url", admin.url, "--url", "http://127.0.0.1:8123", *QUICK, environment={"POD_IP": "10.9.8.7"})

    assert admin.calls[0].startswith("POST /api/v1/endpoints/10.9.8.7:8123/drain")


async def test_the_token_is_sent_and_never_shown(admin: PickerAdmin, tmp_path: Path) -> None:
    admin.token = "t0ken-of-the-test"
    (tmp_path / "token").write_text(admin.token + "\n")
    admin.in_flight = 1
    to = ("--epp-url", admin.url, "--endpoint", ENDPOINT, "--epp-token-file", str(tmp_path / "token"))
    async with drain_process(tmp_path, *to, *QUICK) as hook:
        await hook.says("1 requests")
        shown = Path(f"/proc/{hook.process.pid}/cmdline").read_bytes()
        admin.in_flight = 0
        log = await hook.ends()

    assert admin.token not in log
    assert admin.token.encode() not in shown


async def test_a_token_that_cannot_be_read_is_told_and_does_not_hold_the_hook(admin: PickerAdmin, tmp_path: Path) -> None:
    admin.token = "secret"
    os.mkfifo(tmp_path / "token")
    to = ("--epp-url", admin.url, "--endpoint", ENDPOINT, "--epp-token-file", str(tmp_path / "token"))

    log = await drain(tmp_path, *to, *QUICK)

    assert "expected one word" in log
    assert "it does not allow it (403)" in log


async def test_sigterm_is_said_and_ends_it(tmp_path: Path) -> None:
    async with (
        MetricsServer(BUSY_PAGE) as server,
        drain_process(tmp_path, "--engine", "vllm", "--url", f"http://{server.address}", *QUICK) as hook,
    ):
        await hook.says("3 requests")
        hook.process.send_signal(signal.SIGTERM)
        log = await hook.ends()

    assert log.endswith("ends early: told to by a signal\n")


async def test_a_log_that_nobody_empties_does_not_hold_the_hook(tmp_path: Path) -> None:
    fifo = tmp_path / "full"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        pass
    async with drain_process(tmp_path, *QUICK, "--log-file", str(fifo), log=False) as hook:
        await hook.ends()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "gpt"), "--engine: expected one of vllm"),
        (("--enginee", "vllm"), "No such option"),
        (("--interval", "often"), "expected a duration"),
        (("--epp-url", "my-pool-epp"), "--epp-url: expected a URL"),
        (("--epp-url", "http://127.0.0.1:1", "--endpoint", "gpu-a"), "--endpoint: expected ip:port"),
        (("--max-wait", "100ms"), "--max-wait: expected at least --min-wait"),
        (("--grace", "30s"), "--grace: expected --advise beside it"),
    ],
)
async def test_wrong_flags_are_said_in_one_line_and_the_minimum_is_waited(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    began_s = time.monotonic()

    log = await drain(tmp_path, "--min-wait", "400ms", *arguments)

    assert sentence in log
    assert log.endswith("; only waits 0.4 s\n")
    assert len(log.splitlines()) == 1
    assert time.monotonic() - began_s >= 0.4


async def test_a_bug_costs_no_more_than_the_answer(tmp_path: Path) -> None:
    """As if a file of the installation were broken."""
    (tmp_path / "aiohttp.py").write_text("raise RuntimeError('broken')\n")
    to = ("--epp-url", "http://127.0.0.1:1", "--endpoint", ENDPOINT)

    log = await drain(tmp_path, *to, "--min-wait", "300ms", environment={"PYTHONPATH": str(tmp_path)})

    assert "a bug of epp drain, which waits the minimum: RuntimeError: broken" in log


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--print-script", "--engine", "gpt"), "--engine: expected one of"),
        (("--print-script", "--nonsense"), "No such option"),
        (("--print-script", "--engine", "vllm", "--running-metric", r'q{s=~"\\d"}'), "expected for the script a pattern"),
        (("--advise", "--print-script", "--engine", "vllm"), "expected it without --print-script"),
        (("--advise", "--engine", "vllm"), "--slowest-request: expected a duration"),
    ],
)
async def test_reports_end_with_2_when_they_are_asked_for_wrongly(arguments: tuple[str, ...], sentence: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "epp",
        "drain",
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()

    assert process.returncode == 2
    assert sentence in errors.decode()


def test_every_option_has_help() -> None:
    assert all(getattr(parameter, "help", None) for parameter in command.params)
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0


def test_the_script_names_the_flags_it_was_made_with_and_is_the_same_each_time() -> None:
    flags = [
        "--print-script",
        "--engine",
        "vllm",
        "--epp-url",
        "http://epp:9090",
        "--min-wait",
        "7s",
        "--waiting-metric",
        "q{a='b c'}",
    ]
    first, second = (CliRunner().invoke(command, flags).stdout for _ in range(2))

    assert first == second
    assert (
        "# Made by: epp drain --engine vllm --waiting-metric 'q{a='\"'\"'b c'\"'\"'}' --epp-url http://epp:9090 --min-wait 7s"
        in first
    )
