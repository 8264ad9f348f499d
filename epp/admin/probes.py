"""`/healthz` and `/readyz`."""

from aiohttp import web

from epp.lifecycle import Lifecycle, Phase

WHY_NOT_READY = {
    Phase.STARTING: "the pool is not listed yet, or the first round of scrapes has not ended",
    Phase.DRAINING: "the process is shutting down: it serves the streams that run and wants no new ones",
    Phase.STOPPED: "the process has stopped serving",
}


def probe_routes(lifecycle: Lifecycle) -> list[web.RouteDef]:
    """Liveness: 200 until the process has stopped serving. Readiness: 200 while Envoy should send new streams here."""

    async def healthz(_request: web.Request) -> web.Response:
        phase = lifecycle.phase.value
        return web.Response(text=f"alive: {phase}\n") if lifecycle.live else web.Response(status=503, text=f"{phase}\n")

    async def readyz(_request: web.Request) -> web.Response:
        if lifecycle.ready:
            return web.Response(text="ready\n")
        phase = lifecycle.phase
        return web.Response(status=503, text=f"not ready: {phase.value}: {WHY_NOT_READY[phase]}\n")

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]
