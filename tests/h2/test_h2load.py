"""`h2load` of nghttp2, an independent client: many streams over many connections."""

import re
from pathlib import Path

import pytest

from epp.extproc.names import PROCESS_METHOD
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest
from epp.pb.grpc.health.v1.health_pb2 import HealthCheckRequest
from tests.flows.epp_process import EppProcess
from tests.h2.peer import message
from tests.h2.test_h2spec import run
from tests.tools import require_tool

REQUESTS = 5_000
CALLS = {
    "/grpc.health.v1.Health/Check": HealthCheckRequest(service="liveness").SerializeToString(),
    PROCESS_METHOD: ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)).SerializeToString(),
}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
async def test_every_one_of_many_calls_over_many_connections_is_answered(tmp_path: Path, path: str, secure: bool) -> None:
    h2load = require_tool("h2load")
    # They greet all at once, and a peer has 10 s for that: a hundred TLS handshakes may take longer on a busy machine.
    connections = 25 if secure else 100
    body = tmp_path / "message"
    body.write_bytes(message(CALLS[path]))
    async with EppProcess("--endpoint", "127.0.0.1:9", tls=secure) as epp:
        said = await run(
            h2load,
            *("-n", str(REQUESTS), "-c", str(connections), "-m", str(2_000 // connections), "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"{'https' if secure else 'http'}://{epp.grpc}{path}",
        )
        await epp.wait_idle()
        errors = epp.log_records("error")

    counts = re.search(r"(\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", said)
    assert counts is not None, said
    assert [int(count) for count in counts.groups()] == [REQUESTS, REQUESTS, REQUESTS, 0, 0], said
    assert errors == []
