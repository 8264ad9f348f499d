"""Where everything is, for people who want to look."""

import json
import shlex
from collections.abc import Iterator

from epp.demo.fleet import MODEL
from epp.demo.stage import Stage


def place_lines(stage: Stage) -> Iterator[str]:
    """The addresses."""
    yield f"  dashboard      {stage.pages.url}/"
    yield f"  Envoy          {stage.envoy_url}  (clients send here; it asks the picker over TLS on port {stage.grpc_port})"
    servers = ", ".join(f"{name} :{server.port}" for name, server in stage.servers.items() if server.entry is not None)
    yield f"  model servers  {servers}"


def curl_lines(stage: Stage) -> Iterator[str]:
    """How to go on by hand."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40})
    command = ["curl", "-i", f"{stage.envoy_url}/v1/chat/completions", "-H", "content-type: application/json", "-d", body]
    yield ""
    yield "Everything goes on running, with traffic, until Ctrl-C."
    yield from place_lines(stage)
    yield f"  metrics        {stage.pages.url}/metrics"
    yield f"  endpoints      {stage.endpoints_file}  (change it: `draining: true`, other weights, fewer servers)"
    yield f"  Envoy admin    http://{stage.envoy.admin}"
    yield "Send a request of your own; the header x-sim-name of the answer says who served it:"
    yield f"  {shlex.join(command)}"
