"""The dashboard: one HTML file that reads the JSON API from the browser."""

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from aiohttp import web


def dashboard_routes() -> list[web.RouteDef]:
    """`/`, with a policy that allows the page's own style and script, requests to this port, and nothing else."""
    page = files("epp.admin").joinpath("dashboard.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": content_security_policy(page)}

    async def dashboard(_request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html", charset="utf-8", headers=headers)

    return [web.get("/", dashboard)]


def content_security_policy(page: str) -> str:
    """The policy of `page`: its inline style and script are named by their hashes, so no other text can become code."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash_of('script', page)}",
            f"style-src {_hash_of('style', page)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash_of(tag: str, page: str) -> str:
    inside = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert inside is not None, f"dashboard.html: expected one <{tag}> without attributes"
    return f"'sha256-{b64encode(sha256(inside.group(1).encode()).digest()).decode()}'"
