"""`endpoint-health-filter`: endpoints whose own answers failed get only a trickle of probes."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest


class EndpointHealthFilter:
    """Takes demoted endpoints away, except for one whose probe is due: then it alone is left, so that the probe happens.

    When every candidate is demoted, all stay: some answer is better than none.
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
        for e in candidates:
            if e.health.demoted_because and e.health.probe_is_due(moment.now_s, moment.picks_total):
                return [e]
        return well
