"""A real Envoy with a picker that always picks the same endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from epp.envoy.options import HostPort
from epp.envoy.process import EnvoyProcess
from tests.fakes.ext_proc_server import Behaviour, ExtProcServer, Stream
from tests.fakes.http1_client import Answer, fetch
from tests.flows.harness import patient_health_check, start_envoy, wait_until
from tests.patience import PATIENCE_S


@dataclass(slots=True)
class Rig:
    picker: ExtProcServer
    envoy: EnvoyProcess

    @property
    def listen(self) -> HostPort:
        return self.envoy.listener()

    async def fetch(self, path: str = "/x", **request: Any) -> Answer:
        """One request through Envoy."""
        return await fetch(self.listen.host, self.listen.port, path, timeout_s=PATIENCE_S, **request)

    async def last_stream(self) -> Stream:
        """The newest ext_proc stream, once it has ended."""
        await wait_until(
            lambda: self.picker.streams and self.picker.streams[-1].ended, "the ext_proc stream to end", PATIENCE_S
        )
        return self.picker.streams[-1]


@asynccontextmanager
async def start_rig(behaviour: Behaviour, **options: Any) -> AsyncIterator[Rig]:
    """The picker and an Envoy that asks it."""
    async with ExtProcServer(behaviour) as picker, start_envoy(picker.port, adapt=patient_health_check, **options) as envoy:
        yield Rig(picker, envoy)
