"""InferenceObjectives as the table of priorities. No input or output here."""

from collections.abc import Iterable

from epp.discovery.kubernetes.objects import InferenceObjective
from epp.pool.objectives import DEFAULT_PRIORITY


def read_priorities(
    newer: Iterable[InferenceObjective], older: Iterable[InferenceObjective], *, pool_name: str, pool_group: str
) -> dict[str, int]:
    """Priorities by name of the objective, of those that refer to this pool and are not being deleted.

    Requests name an objective without its API group. Where both groups have one of a name, that of the newer group counts,
    whichever is older: people who move copy their objects, and go on with the copies.

    Args:
        newer: Of group `llm-d.ai`.
        older: Of group `inference.networking.x-k8s.io`.
    """
    priorities: dict[str, int] = {}
    for objective in (*older, *newer):
        if _is_for(objective, pool_name, pool_group):
            priority = objective.spec.priority if objective.spec is not None else None
            priorities[objective.metadata.name] = DEFAULT_PRIORITY if priority is None else priority
    return priorities


def _is_for(objective: InferenceObjective, pool_name: str, pool_group: str) -> bool:
    pool = objective.spec.pool_ref if objective.spec is not None else None
    return pool is not None and pool.names(pool_name, pool_group) and objective.metadata.deletion_timestamp is None
