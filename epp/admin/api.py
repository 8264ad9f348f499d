"""JSON under `/api/v1`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from epp.admin.answers import error_answer, json_answer
from epp.admin.pool_view import PoolView
from epp.admin.settings_view import EffectiveSetting, settings_as_json

DEFAULT_PICKS = 50
MAX_PICKS = 1000

RecentPicks = Callable[[int], Sequence[Mapping[str, Any]]]
"""The last decisions, newest first, at most as many as asked for, each in the shape of `GET /api/v1/picks`."""


def api_routes(pool: PoolView, recent_picks: RecentPicks, settings: Sequence[EffectiveSetting]) -> list[web.RouteDef]:
    """What the picker knows, decided and was told."""

    async def get_pool(_request: web.Request) -> web.Response:
        return json_answer(pool.as_json())

    async def get_picks(request: web.Request) -> web.Response:
        text = request.query.get("limit", str(DEFAULT_PICKS))
        limit = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
        if not 1 <= limit <= MAX_PICKS:
            sentence = f"limit: expected a whole number from 1 to {MAX_PICKS}, found {text[:50]!r}"
            return error_answer(400, "bad_request", sentence, parameter="limit")
        return json_answer({"picks": recent_picks(limit)})

    async def get_config(_request: web.Request) -> web.Response:
        return json_answer(settings_as_json(settings))

    return [
        web.get("/api/v1/pool", get_pool),
        web.get("/api/v1/picks", get_picks),
        web.get("/api/v1/config", get_config),
    ]
