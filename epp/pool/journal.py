"""Tells each change of an endpoint's state in one line."""

from typing import Protocol

from epp.pool.endpoint import Endpoint
from epp.pool.health import REFUSES
from epp.pool.state import PoolState


class JournalLog(Protocol):
    """Where the lines go."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...


class PoolJournal:
    """Compares the pool with what was told of it last.

    A look now and then, and no listener: a state that flaps between two looks is told once, and the path of a request has
    no part in it.
    """

    def __init__(self, pool: PoolState, log: JournalLog) -> None:
        self._pool = pool
        self._log = log
        self._told: dict[Endpoint, tuple[str, str | None]] | None = None

    def look(self) -> None:
        """Tell what changed since the last look (call it about each second); the first look only remembers."""
        now = {endpoint: _standing(endpoint) for endpoint in (*self._pool.endpoints, *self._pool.leaving)}
        told = self._told
        if told is None and not self._pool.listed:
            return
        self._told = now
        for endpoint, standing in now.items():
            if standing[0] == "demoted" or told is not None:
                self._tell(endpoint, standing, None if told is None else told.get(endpoint))
        for endpoint in () if told is None else told.keys() - now.keys():
            self._log.info("endpoint is gone", endpoint=endpoint.address, name=endpoint.spec.name)

    def _tell(self, endpoint: Endpoint, standing: tuple[str, str | None], before: tuple[str, str | None] | None) -> None:
        state, why = standing
        if before is not None and before[0] == state:  # the sentence may count on; the state is the same
            return
        tell = self._log.warning if state == "demoted" else self._log.info
        was = None if before is None else before[0]
        tell("endpoint state", endpoint=endpoint.address, name=endpoint.spec.name, state=state, was=was, why=why)


def _standing(endpoint: Endpoint) -> tuple[str, str | None]:
    """The state as people see it: ready endpoints that only get probes are `demoted`.

    Not those that refuse connections: it is scrapes that see them do so, and their log says it, once.
    """
    because = endpoint.health.demoted_because
    if because is not None and because is not REFUSES and endpoint.state.value == "ready":
        return "demoted", because
    return endpoint.state.value, endpoint.reason
