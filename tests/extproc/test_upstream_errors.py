"""Who made an answer."""

import pytest

from epp.extproc.upstream_errors import Origin, origin_of_body, origin_of_details

RESET = "upstream_reset_before_response_started"
TEXT = "upstream connect error or disconnect/reset before headers. "


@pytest.mark.parametrize(
    ("details", "origin"),
    [
        ("via_upstream", Origin.ENDPOINT),
        (f"{RESET}{{remote_connection_failure|delayed_connect_error:_Connection_refused}}", Origin.REFUSED),
        (f"{RESET}{{connection_failure,delayed_connect_error:_111}}", Origin.REFUSED),
        (f"{RESET}{{connection_timeout}}", Origin.REFUSED),
        (f"{RESET}{{connection_termination}}", Origin.BROKEN),
        (f"{RESET}{{protocol_error}}", Origin.BROKEN),
        (f"{RESET}{{remote_refused_stream_reset}}", Origin.BROKEN),
        (f"{RESET}{{overflow}}", Origin.ENVOY),
        (f"{RESET}{{local_reset}}", Origin.ENVOY),
        ("upstream_response_timeout", Origin.ENDPOINT),
        ("no_healthy_upstream", Origin.ENVOY),
        ("request_rate_limited", Origin.ENVOY),
    ],
)
def test_the_details_tell_whose_the_answer_is(details: str, origin: Origin) -> None:
    """Field report 13."""
    assert origin_of_details(details) is origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (f"{TEXT}reset reason: remote connection failure", Origin.REFUSED),
        (f"{TEXT}reset reason: connection failure, transport failure reason: delayed connect error: 111", Origin.REFUSED),
        (f"{TEXT}retried and the latest reset reason: connection termination", Origin.BROKEN),
        (f"{TEXT}reset reason: overflow", Origin.ENVOY),
        ("no healthy upstream", Origin.ENVOY),
        ("Service Unavailable", Origin.ENDPOINT),
        ("", Origin.ENDPOINT),
    ],
)
def test_without_details_the_text_of_the_answer_tells(text: str, origin: Origin) -> None:
    assert origin_of_body(text.encode()) is origin
