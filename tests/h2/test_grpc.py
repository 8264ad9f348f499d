"""What makes a request a gRPC call."""

import pytest

from epp.h2.grpc import check_grpc, deadline_in_s


def asked(method: bytes = b"POST", content_type: bytes | None = b"application/grpc") -> dict[bytes, bytes]:
    request = {b":method": method, b":path": b"/a/b"}
    if content_type is not None:
        request[b"content-type"] = content_type
    return request


@pytest.mark.parametrize(
    "content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8", b"Application/GRPC"]
)
def test_every_form_of_the_content_type_is_taken(content_type: bytes) -> None:
    assert check_grpc(asked(content_type=content_type)) is None


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        b"",
        b"application/json",
        b"application/grp",
        b"application/grpc-web",
        b"application/grpc-web+proto",
        b"x application/grpc",
    ],
)
def test_another_content_type_is_415(content_type: bytes | None) -> None:
    refusal = check_grpc(asked(content_type=content_type))

    assert refusal is not None
    assert refusal[0] == 415
    assert b"application/grpc" in refusal[1]


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"post", b""])
def test_another_method_is_405(method: bytes) -> None:
    refusal = check_grpc(asked(method=method))

    assert refusal is not None
    assert refusal[0] == 405
    assert b"POST" in refusal[1]


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"30S", 30.0),
        (b"1500m", 1.5),
        (b"250u", 0.00025),
        (b"99999999n", 0.099999999),
        (b"0S", 0.0),
        (b"99999999H", 99999999 * 3600.0),
    ],
)
def test_a_timeout_counts_from_now(timeout: bytes, seconds: float) -> None:
    assert deadline_in_s(timeout, 1000.0) == pytest.approx(1000.0 + seconds)


@pytest.mark.parametrize("timeout", [b"", b"S", b"10", b"1s", b"-1S", b"+1S", b"1.5S", b" 1S", b"100000000S", b"1 S", b"\xb2S"])
def test_a_timeout_that_cannot_be_read_is_none(timeout: bytes) -> None:
    assert deadline_in_s(timeout, 1000.0) is None
