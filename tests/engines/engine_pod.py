"""A pod with a real model server in it."""

import contextlib
import os
import signal

from epp.demo.child import Child
from epp.envoy.options import HostPort
from tests.engines.servers import RealServer
from tests.kubernetes.server_process import unused_port
from tests.rollout.engines import MANNERS
from tests.rollout.pod import Pod


class EnginePod(Pod):
    """The kubelet's part is that of any pod; answers name no pod, so its name is for messages."""

    start_s = 900.0

    def __init__(self, name: str, server: RealServer) -> None:
        super().__init__(name, [], probe=MANNERS[server.engine].probe)
        self._server = server

    @property
    def pid(self) -> int:
        """Of the process that gets SIGTERM."""
        assert self._child.pid is not None
        return self._child.pid

    @property
    def log(self) -> str:
        """What the server has written."""
        return self._child.log_text()

    async def _start(self, child: Child) -> HostPort:
        at = HostPort("127.0.0.1", unused_port())
        await child.run(self._server.command(at.port), self._server.environment())
        return at

    async def _leave(self) -> None:
        # Engines have processes of their own.
        if self._child.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        await super()._leave()
