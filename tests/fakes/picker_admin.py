"""The admin port of an endpoint picker as `epp drain` sees it, with a switch for every way it can behave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


class PickerAdmin:
    """Answers drain calls.

    Attributes:
        in_flight: Its count, for every endpoint.
        knows: Whether it knows the endpoint.
        ready: What `/readyz` says.
        token: What callers must show; None for nothing.
        answer: Instead of all that, what is answered to every call.
        calls: `METHOD path?query` of all that came.
        url: Where it listens.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.knows = True
        self.ready = True
        self.token: str | None = None
        self.answer: tuple[int, bytes] | None = None
        self.calls: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.method} {request.path_qs}")
        if self.answer is not None:
            return web.Response(status=self.answer[0], body=self.answer[1])
        if request.path == "/readyz":
            return web.Response(status=200 if self.ready else 503)
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "not allowed"}, status=403)
        endpoint, call = request.path.removeprefix("/api/v1/endpoints/").rsplit("/", 1)
        if not self.knows:
            return web.json_response({"error": "unknown"}, status=404)
        assert (request.method, call) in {("POST", "drain"), ("GET", "drained")}
        body = {"endpoint": endpoint, "state": "draining", "in_flight_requests": self.in_flight, "peers": {}}
        return web.json_response(body, status=202 if call == "drained" and self.in_flight else 200)


@asynccontextmanager
async def picker_admin() -> AsyncIterator[PickerAdmin]:
    """One that listens on loopback."""
    admin = PickerAdmin()
    application = web.Application()
    application.router.add_route("*", "/{any:.*}", admin.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    admin.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield admin
    finally:
        await runner.cleanup()
