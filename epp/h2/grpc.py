"""What makes an HTTP/2 request a gRPC call."""

import re
from collections.abc import Mapping

_GRPC_TYPE = re.compile(rb"application/grpc(?:[+;]|$)", re.IGNORECASE)
"""Not `application/grpc-web`, whose messages look alike and whose trailers do not."""
_TIMEOUT_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def check_grpc(request: Mapping[bytes, bytes]) -> tuple[int, bytes] | None:
    """Why this is no gRPC call, as HTTP status and text; None when it is one ("Requests" in PROTOCOL-HTTP2)."""
    if request[b":method"] != b"POST":
        return 405, b"expected POST: this port speaks gRPC\n"
    if not _GRPC_TYPE.match(request.get(b"content-type", b"")):
        return 415, b"expected content-type application/grpc: this port speaks gRPC\n"
    return None


def deadline_in_s(timeout: bytes, now_s: float) -> float | None:
    """When a `grpc-timeout` is over: up to eight digits and a unit. None for one that cannot be read (it is ignored)."""
    unit = _TIMEOUT_UNITS_S.get(timeout[-1:])
    digits = timeout[:-1]
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return now_s + int(digits) * unit
