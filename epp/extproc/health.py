"""The answers of `grpc.health.v1`, whatever transport asks."""

from collections.abc import Iterable
from enum import IntEnum

from epp.extproc.names import EXT_PROC_SERVICE
from epp.lifecycle import Lifecycle

CHECK_METHOD = "/grpc.health.v1.Health/Check"
WATCH_METHOD = "/grpc.health.v1.Health/Watch"


class HealthStatus(IntEnum):
    """`HealthCheckResponse.ServingStatus`."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Maps service names to the lifecycle.

    `liveness` says whether the process works at all; every other name whether new streams should come here, so that a
    gateway that asks for the ext_proc service stops sending at SIGTERM while the process still serves.

    Args:
        aliases: Further names for readiness (gateways differ in what they ask for).
    """

    def __init__(self, lifecycle: Lifecycle, aliases: Iterable[str] = ()) -> None:
        self.lifecycle = lifecycle
        self._readiness = frozenset({"", EXT_PROC_SERVICE, "readiness", "inference-extension", *aliases})

    def check(self, service: str) -> HealthStatus:
        """The status of `service` now; SERVICE_UNKNOWN for a name nobody configured."""
        if service == "liveness":
            return HealthStatus.SERVING if self.lifecycle.live else HealthStatus.NOT_SERVING
        if service not in self._readiness:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus.SERVING if self.lifecycle.ready else HealthStatus.NOT_SERVING
