"""What the scheduler knows of one HTTP request."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)  # one a request: a frozen one costs three times as much to make
class InferenceRequest:
    """One request, as far as it matters for the choice of an endpoint.

    Attributes:
        request_id: For people who look for it in logs and in `/api/v1/picks`.
        headers: First value of each header, lower-case names, pseudo-headers included.
        model: Name of the model that the model server will be asked for; None when the body names none or was not read.
        client_model: What the client named instead, where a rewrite rule changed that; None otherwise.
        priority: Of the objective that the request names, the higher the more important; 0 is the default.
        subset: Addresses the request may go to, each `ip` or `ip:port`; None means all.
        endpoints_named: How many endpoints the proxy can try one after the other, ≥ 1.
        body_bytes: Length of the body, as far as it is known.
    """

    request_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    client_model: str | None = None
    priority: int = 0
    subset: frozenset[str] | None = None
    endpoints_named: int = 1
    body_bytes: int = 0
