"""A real Envoy with a picker that always picks the same endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from epp.envoy.ext_proc_filter import EPP_CLUSTER
from epp.envoy.options import HostPort
from epp.envoy.process import EnvoyProcess
from epp.envoy.typed import seconds
from tests.fakes.ext_proc_server import Behaviour, ExtProcServer, Stream
from tests.fakes.http1_client import Answer, fetch
from tests.flows.harness import start_envoy, wait_until

LONG_S = 100.0
"""How long a test waits for what must come: only a guard against hanging, on however slow a machine."""


def patient(configuration: Bootstrap) -> None:
    """The health check of the picker is not lost because a busy machine lets it wait for more than a second."""
    picker_cluster(configuration).health_checks[0].timeout = seconds(LONG_S)


def picker_cluster(configuration: Bootstrap) -> Cluster:
    """How Envoy reaches the picker."""
    assert configuration.static_resources is not None
    (cluster,) = [each for each in configuration.static_resources.clusters if each.name == EPP_CLUSTER]
    return cluster


@dataclass(slots=True)
class Rig:
    picker: ExtProcServer
    envoy: EnvoyProcess

    @property
    def listen(self) -> HostPort:
        return self.envoy.listener()

    async def fetch(self, path: str = "/x", **request: Any) -> Answer:
        """One request through Envoy."""
        return await fetch(self.listen.host, self.listen.port, path, timeout_s=LONG_S, **request)

    async def last_stream(self) -> Stream:
        """The newest ext_proc stream, once it has ended."""
        await wait_until(lambda: self.picker.streams and self.picker.streams[-1].ended, "the ext_proc stream to end", LONG_S)
        return self.picker.streams[-1]


@asynccontextmanager
async def start_rig(behaviour: Behaviour, **options: Any) -> AsyncIterator[Rig]:
    """The picker and an Envoy that asks it."""
    async with ExtProcServer(behaviour) as picker, start_envoy(picker.port, adapt=patient, **options) as envoy:
        yield Rig(picker, envoy)
