"""A stand-in for the prediction endpoint, over real HTTP: it answers by series, and can die, stall or talk nonsense."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from asgi_server import served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

QUANTILES = (0.5, 0.9, 0.95, 0.99)


class Endpoint:
    """``demand`` has four quantiles by series; ``says`` is ``forecasts``, ``garbage``, ``error``, ``fallback`` or
    ``stall``. What was asked is in ``asked``."""

    def __init__(self) -> None:
        self.url = ""
        self.demand: dict[str, tuple[float, ...]] = {}
        self.says = "forecasts"
        self.asked: list[dict[str, Any]] = []
        self.data_age_s = 0.0

    async def answer(self, request: Request) -> Response:
        query = await request.json()
        self.asked.append(query)
        if self.says == "stall":
            await asyncio.sleep(30)
        if self.says == "garbage":
            return PlainTextResponse('{"series": [{"name": 1, "hori', media_type="application/json")
        if self.says == "error":
            return PlainTextResponse("broken", status_code=500)
        return Response(json.dumps(self._document(query)), media_type="application/json")

    def _document(self, query: dict[str, Any]) -> dict[str, Any]:
        model = {"name": "demand-pooled", "version": "7", "digest": ""}
        series = [
            {
                "name": one["name"],
                "unit": "requests",
                "bucket_s": 300,
                "fallback": self.says == "fallback",
                "horizons": [self._horizon(one["name"], h, model) for h in query["horizons_s"]],
            }
            for one in query["series"]
        ]
        return {
            "schema": "kopt/v1",
            "model": model,
            "fallback": self.says == "fallback",
            "series": series,
            "seconds": 0.001,
        }

    def _horizon(self, name: str, horizon_s: int, model: dict[str, str]) -> dict[str, Any]:
        found = self.demand.get(name, (0.0,) * 4)
        demand = {
            "value": found[0],
            "low": found[0] / 2,
            "high": found[-1],
            "probability": 0.98,
            "unit": "requests",
            "confidence": 0.9,
            "model": model,
            "reasons": [],
            "features_at_s": time.time() - 300 - self.data_age_s,
            "quantiles": {f"{q:g}": value for q, value in zip(QUANTILES, found, strict=True)},
            "horizon_s": horizon_s,
            "fallback": self.says == "fallback",
            "refused": False,
        }
        return {"horizon_s": horizon_s, "demand": demand, "gpus": None}


@contextlib.contextmanager
def endpoint() -> Iterator[Endpoint]:
    one = Endpoint()
    with served(Starlette(routes=[Route("/v1/demand", one.answer, methods=["POST"])])) as url:
        one.url = url
        yield one
