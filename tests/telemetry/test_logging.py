"""Log lines."""

import gc
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict

from epp.telemetry.logging import HIDDEN, LibraryLogHandler, configure_logging


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_of_earlier_tests() -> None:
    """What asyncio says of tasks that they left behind would be a line more in whichever test they are collected in."""
    gc.collect()


@pytest.fixture(autouse=True)
def undo_configuration() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    structlog.reset_defaults()
    for handler in [h for h in root.handlers if isinstance(h, LibraryLogHandler)]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_logger_event_and_fields(out: io.StringIO) -> None:
    configure_logging("info", "json", out)("extproc").info("stream_ended", requests=3, endpoint="10.0.0.1:8000")

    (line,) = lines(out)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line["timestamp"].endswith("Z")
    assert (line["level"], line["logger"], line["event"]) == ("info", "extproc", "stream_ended")
    assert (line["requests"], line["endpoint"]) == (3, "10.0.0.1:8000")


def test_the_console_form_is_for_people_and_has_no_colours_in_a_file(out: io.StringIO) -> None:
    configure_logging("info", "console", out)("extproc").warning("scrape_failed", endpoint="10.0.0.1:8000")

    text = out.getvalue()
    assert "scrape_failed" in text
    assert "endpoint=10.0.0.1:8000" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_left_out(out: io.StringIO, level: str, expected: int) -> None:
    log = configure_logging(level, "json", out)("x")

    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")

    assert len(lines(out)) == expected


def test_a_suppressed_line_is_not_processed(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    processed = []

    def process(_logger: object, _method: str, event: EventDict) -> EventDict:
        processed.append(event["event"])
        return event

    monkeypatch.setattr("epp.telemetry.logging.hide_fields", process)
    log = configure_logging("info", "json", out)("x")

    log.debug("suppressed", request_id="r", endpoint="10.0.0.1:8000", duration_s=0.00003)
    log.info("written")

    assert processed == ["written"]


@pytest.mark.parametrize("format_", ["json", "console"])
def test_credentials_and_prompts_are_replaced_whoever_logs_them(out: io.StringIO, format_: str) -> None:
    log = configure_logging("info", format_, out)("x")

    log.info("bad", authorization="Bearer s3cret", prompt="s3cret", messages=[{"content": "s3cret"}], headers={"k": "s3cret"})

    assert "s3cret" not in out.getvalue()
    assert HIDDEN in out.getvalue()


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_stack_is_logged_without_local_variables(out: io.StringIO, format_: str) -> None:
    log = configure_logging("info", format_, out)("x")
    prompt = "s3cret words"
    try:
        len(prompt) // 0
    except ZeroDivisionError:
        log.exception("internal_error", request_id="r-1")

    text = out.getvalue()
    assert "ZeroDivisionError" in text
    assert "test_a_stack_is_logged_without_local_variables" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("format_", ["json", "console"])
@pytest.mark.parametrize("value", ["a\ud800b", ["a\ud800b"], {"a": {1, 2}}, object(), b"\xff", float("nan"), {(1, 2): 3}])
def test_no_value_breaks_the_line(format_: str, value: object) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)

    configure_logging("info", format_, out)("x").info("odd", model=value)

    text = raw.getvalue().decode()
    assert text.count("\n") == 1
    assert "odd" in text
    if format_ == "json":
        assert "model" in json.loads(text)


def test_line_breaks_in_values_cannot_forge_a_line(out: io.StringIO) -> None:
    configure_logging("info", "json", out)("x").info("odd", model='x"\n{"event":"forged"}')

    (line,) = lines(out)
    assert line["event"] == "odd"


def test_libraries_log_in_the_same_form_from_warning_on(out: io.StringIO) -> None:
    configure_logging("debug", "json", out)

    logging.getLogger("aiohttp.server").info("every request")
    logging.getLogger("aiohttp.server").warning("trouble with %s", "a thing")

    (line,) = lines(out)
    assert (line["logger"], line["level"], line["event"]) == ("aiohttp.server", "warning", "trouble with a thing")


def test_configuring_twice_does_not_double_the_lines_of_libraries(out: io.StringIO) -> None:
    configure_logging("info", "json", out)
    configure_logging("info", "json", out)

    logging.getLogger("grpc").error("once")

    assert len(lines(out)) == 1


@pytest.mark.parametrize(("level", "format_"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_level_or_format_is_refused_with_the_alternatives(level: str, format_: str, out: io.StringIO) -> None:
    with pytest.raises(ValueError, match=r"expected one of .*(debug|json).*, found '(loud|xml)'"):
        configure_logging(level, format_, out)
