"""Putting the settings together."""

from typing import Any

import pytest

from epp.config.document import Document
from epp.config.loader import effective, load_settings
from epp.errors import ConfigError

Given = dict[tuple[str, str], tuple[str, Any]]
SOURCE: Given = {("source", "endpoints_file"): ("flag --endpoints-file", "e.yaml")}


def document(**values: Any) -> Document:
    return Document(where="c.yaml", values={("scrape", name): value for name, value in values.items()})


def test_a_flag_beats_the_file_and_the_file_beats_the_default() -> None:
    given: Given = {**SOURCE, ("scrape", "interval_s"): ("flag --refresh-metrics-interval", 0.2)}
    loaded = load_settings(given, document(interval_s=0.1, timeout_s=3.0))
    assert (loaded.settings.scrape.interval_s, loaded.settings.scrape.timeout_s) == (0.2, 3.0)
    origins = {key: origin for key, _, origin in effective(loaded)}
    assert origins["scrape.interval"] == "flag --refresh-metrics-interval"
    assert origins["scrape.timeout"] == "c.yaml"
    assert origins["scrape.enabled"] == "default"


def test_a_staleness_threshold_under_three_intervals_is_refused() -> None:
    """Field report 34."""
    with pytest.raises(ConfigError, match=r"scrape.stalenessThreshold: expected at least 3 scrape intervals of 5s, found 1s"):
        load_settings(SOURCE, document(interval_s=5.0, staleness_s=1.0))


def test_a_longer_interval_lifts_a_threshold_that_nobody_set() -> None:
    """Field report 34: endpoints must not look stale by design."""
    loaded = load_settings(SOURCE, document(interval_s=5.0))
    assert loaded.settings.scrape.staleness_s == 15.0
    assert loaded.notes == ("scrape.stalenessThreshold: lifted from 2s to 15s, 3 scrape intervals",)


def test_without_scraping_the_threshold_does_not_matter() -> None:
    load_settings(SOURCE, document(enabled=False, interval_s=5.0, staleness_s=1.0))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "found none"),
        ({**SOURCE, ("source", "endpoints"): ("flag --endpoint", ("1.2.3.4:5",))}, "found --endpoints-file and --endpoint"),
    ],
)
def test_exactly_one_source_of_endpoints(given: Given, found: str) -> None:
    """Field report 70: settings that exclude each other."""
    with pytest.raises(ConfigError, match=f"expected exactly one of --pool-name, .*--endpoint .*{found}"):
        load_settings(given, None)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (("limits", "max_message_bytes"), 1_000_000, "limits.maxMessageBytes: expected at least limits.maxRequestBodyBytes"),
        (("server", "enable_cert_reload"), True, "--enable-cert-reload: expected --cert-path with it"),
        (("requests", "strict"), True, "requests.strict: expected requests.models with it"),
    ],
)
def test_settings_that_need_another_one_say_so(key: tuple[str, str], value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_settings({**SOURCE, key: ("flag", value)}, None)


def test_grpcio_takes_no_messages_of_2_gib() -> None:
    given: Given = {**SOURCE, ("server", "transport"): ("flag", "grpcio"), ("limits", "max_message_bytes"): ("c.yaml", 2**31)}
    with pytest.raises(ConfigError, match=r"limits.maxMessageBytes: expected at most 2147483647 with --transport=grpcio"):
        load_settings(given, None)


def test_remarks_on_the_environment_become_notes() -> None:
    assert load_settings(SOURCE, None, notes=["EPP_X: ignored"]).notes == ("EPP_X: ignored",)
