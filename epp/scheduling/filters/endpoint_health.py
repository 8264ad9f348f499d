"""`endpoint-health-filter`: endpoints whose own answers failed get only a trickle of probes."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest

PROBE_BODY_BYTES = 512 << 10
"""A request with a larger body may be lost with its first endpoint …"""
LARGE_WAITS_S = 20.0
"""… so it is a probe only where the probe is overdue by this."""


class EndpointHealthFilter:
    """Takes demoted endpoints away, and names one whose probe is due as the moment's probe.

    When every candidate is demoted, all stay: some answer is better than none. A request with a large body is a probe only
    where none with a small one came for long: proxies keep only so much of a body for a second try (Envoy 1 MiB by
    default). This filter belongs last, so that what it names has passed the others.
    """

    def __init__(self, name: str = "endpoint-health-filter") -> None:
        self.name = name

    def keep(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[Endpoint]:
        for e in candidates:
            if e.health.demoted_because is not None:
                break
        else:
            return candidates
        well = [e for e in candidates if not e.health.demoted_because]
        if not well:
            return candidates
        now_s = moment.now_s if request.body_bytes <= PROBE_BODY_BYTES else moment.now_s - LARGE_WAITS_S
        for e in candidates:
            if e.health.demoted_because and e.health.probe_is_due(now_s, moment.picks_total):
                moment.probe = e
                break
        return well
