"""JSON answers and errors of the admin port."""

import json
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from structlog.typing import FilteringBoundLogger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SAFETY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of every answer: what is seen here is a moment, and no browser should guess at types."""


def json_answer(content: object, *, status: int = 200) -> web.Response:
    """`content` as JSON; what JSON cannot say (an infinite or undefined number) becomes null."""
    try:
        body = msgspec.json.encode(content, enc_hook=str)
    except UnicodeEncodeError:
        # A lone surrogate in a model's name: only the escaped form can carry it.
        body = json.dumps(content, default=str).encode()
    return web.Response(status=status, body=body, content_type="application/json")


def error_answer(status: int, code: str, message: str, **more: object) -> web.Response:
    """The shape of every error here, which is also that of the picker's answers to requests."""
    return json_answer({"error": {"message": message, "code": code, **more}}, status=status)


def error_middleware(log: FilteringBoundLogger) -> Middleware:
    """Turns whatever a handler raises into a JSON error; bugs are logged with their stack and harm nobody else."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPNotFound:
            response = error_answer(404, "not_found", f"path: expected one that this port serves, found {request.path}")
        except web.HTTPMethodNotAllowed as refused:
            allowed = ", ".join(sorted(refused.allowed_methods))
            response = error_answer(405, "method_not_allowed", f"method: expected {allowed}, found {request.method}")
            response.headers["allow"] = allowed
        except web.HTTPException as refused:
            response = error_answer(refused.status, "bad_request", refused.reason)
        except Exception:
            log.exception("admin_request_failed", path=request.path)
            response = error_answer(500, "internal", "a bug of the endpoint picker; its log has the details")
        response.headers.update(SAFETY)
        return response

    return answer_errors
