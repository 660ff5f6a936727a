"""The HTTP application: typed ``/v1``, the Open Inference Protocol under ``/v2``, health, metrics, OpenAPI.

Bodies are validated by pydantic straight from the bytes and answers written by it straight from the values; FastAPI
routes and documents. Nothing here does arithmetic.
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route

from kopt.core.reason import Reason
from kopt.models.registry import RegisteredModel, RegistryError
from kopt.serving import inference_protocol
from kopt.serving.advice import STALE_S
from kopt.serving.engine import DemandService
from kopt.serving.limits import Gate, deadline_of, read_json
from kopt.serving.metrics import CONTENT_TYPE, EndpointMetrics
from kopt.serving.monitoring import CHALLENGER, CHAMPION, PredictionTable, SeriesState
from kopt.serving.observer import TableObserver
from kopt.serving.problems import Problem, from_validation
from kopt.serving.schemas import (
    DEMAND_REQUEST,
    DemandRequest,
    DemandResponse,
    ModelHealthResponse,
    ModelsResponse,
    ProblemOut,
    RecommendationsResponse,
    StatusResponse,
)
from kopt.serving.slot import ModelSlot
from kopt.serving.wire import SCHEMA

_LOG = logging.getLogger(__name__)
REFRESH_S = 2.0
"""How often a replica looks at the registry's aliases."""
MOST_AT_ONCE = 64
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemOut, "content": {"application/problem+json": {}}, "description": text}
    for status, text in {
        400: "not JSON", 408: "the body came too slowly", 413: "too large", 415: "not application/json",
        422: "invalid, with the fields", 429: "overloaded, with Retry-After", 503: "not ready",
    }.items()
}  # fmt: skip


@dataclass
class Endpoint:
    """Everything one replica holds. ``start`` loads the models and keeps them fresh until ``stop``."""

    service: DemandService
    metrics: EndpointMetrics
    champion: ModelSlot
    challenger: ModelSlot | None = None
    table: PredictionTable | None = None
    observer: TableObserver | None = None
    versions: Callable[[], tuple[RegisteredModel, ...]] = tuple
    refresh_s: float = REFRESH_S
    most_at_once: int = MOST_AT_ONCE

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self.refresh()
        if self.observer is not None:
            self.observer.start()
        self._thread = threading.Thread(target=self._keep_fresh, name="refresh", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        if self.observer is not None:
            self.observer.stop()
        self.service.close()
        if self.table is not None:
            self.table.close()

    @property
    def alive(self) -> bool:
        """Whether the aliases are still followed."""
        return self._thread is not None and self._thread.is_alive()

    def refresh(self) -> None:
        """Follow the aliases once (blocks: registry and disk)."""
        for slot in (self.champion, self.challenger):
            if slot is None:
                continue
            before = slot.version
            if slot.refresh():
                self.metrics.serving(slot.alias, before, slot.version)
            refused = slot.trouble is not None and slot.trouble.code == "MODEL_REFUSED"
            self.metrics.refused.labels(slot.alias).set(int(refused))

    def _keep_fresh(self) -> None:
        while not self._ending.wait(self.refresh_s):
            try:
                self.refresh()
            except Exception:  # noqa: BLE001 - edge of a thread: the model that serves goes on serving
                _LOG.exception("the aliases could not be read")


def create_app(endpoint: Endpoint, *, manage: bool = True) -> FastAPI:
    """The application over an endpoint, which it starts and stops with itself unless ``manage`` is False."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if manage:
            await asyncio.to_thread(endpoint.start)
        yield
        if manage:
            await asyncio.to_thread(endpoint.stop)

    app = FastAPI(
        title="Kaiwo Optimizer predictions", version="1", description="Typed predictions with intervals and reasons.",
        docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False,
    )  # fmt: skip
    _errors(app)
    _predictions(app, endpoint)
    _models(app, endpoint)
    _status(app, endpoint)
    inference_protocol.routes(app, endpoint.service)
    app.add_middleware(Gate, metrics=endpoint.metrics, most=endpoint.most_at_once)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _errors(app: FastAPI) -> None:
    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response()

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Problem(error.status_code, str(error.detail), headers=dict(error.headers or {})).response()

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(HTTPException, http)


def _predictions(app: FastAPI, endpoint: Endpoint) -> None:
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/DemandRequest"}}}}

    @app.post(
        "/v1/demand", response_model=DemandResponse, responses=_PROBLEMS, tags=["demand"],
        openapi_extra={"requestBody": {"required": True, **body}},
    )  # fmt: skip
    async def demand_v1() -> None:
        """Quantiles of demand and of GPUs per series and horizon; past ``X-Kopt-Deadline-Ms`` the marked fallback."""

    async def demand(request: Request) -> Response:
        request.scope["route"] = route
        content = await read_json(request)
        try:
            asked = DEMAND_REQUEST.validate_json(content)
        except ValidationError as error:
            raise from_validation(error) from None
        forecast = await endpoint.service.forecast(asked, deadline_of(request))
        return _json(forecast.to_dict())

    # The route above documents; this one answers, without what FastAPI does for parameters that there are none of.
    route = Route("/v1/demand", demand, methods=["POST"], include_in_schema=False)
    app.router.routes.insert(0, route)

    @app.get("/v1/recommendations", response_model=RecommendationsResponse, responses=_PROBLEMS, tags=["demand"])
    async def recommendations() -> Response:
        """Lending advice per pool, for services whose requests named ``gpus`` and ``capacity_per_gpu``."""
        table = endpoint.table
        found = [] if table is None else await asyncio.to_thread(table.advice, "", time.time() - STALE_S)
        return _json({"schema": SCHEMA, "recommendations": [json.loads(document) for document in found]})


def _models(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/v1/models", response_model=ModelsResponse, responses=_PROBLEMS, tags=["models"])
    async def models() -> Response:
        """Registered versions and which one answers; why a newer one does not."""
        try:
            known = await asyncio.to_thread(endpoint.versions)
        except RegistryError as error:
            raise Problem(503, f"The registry does not answer: {error}", headers={"retry-after": "5"}) from error
        serving = endpoint.champion.version
        rows = [
            {"name": model.name, "alias": ",".join(model.aliases), "version": model.version, "digest": model.digest,
             "serving": serving is not None and serving.version == model.version}
            for model in known
        ]  # fmt: skip
        return _json({"schema": SCHEMA, "models": rows, "refused": [r.to_dict() for r in _troubles(endpoint)]})

    @app.get("/v1/health/models", response_model=ModelHealthResponse, responses=_PROBLEMS, tags=["models"])
    async def health() -> Response:
        """Predicted against actual per series, for the champion and for the challenger beside it."""
        table, version = endpoint.table, endpoint.champion.version
        if version is None:
            raise Problem(503, "No model is loaded yet.", headers={"retry-after": "5"})
        states = [] if table is None else await asyncio.to_thread(table.states, "")
        challenger = endpoint.challenger.version if endpoint.challenger is not None else None
        return _json(
            {"schema": SCHEMA, "model": version.to_dict(), "challenger": challenger and challenger.to_dict(),
             "series": [_health(s) for s in states if s.role == CHAMPION],
             "shadow": [_health(s) for s in states if s.role == CHALLENGER]}
        )  # fmt: skip


def _status(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/healthz", response_model=StatusResponse, tags=["health"])
    async def healthz() -> Response:
        """The process answers."""
        return _json({"schema": SCHEMA, "status": "live", "reasons": []})

    @app.get("/readyz", response_model=StatusResponse, responses={503: {"model": StatusResponse}}, tags=["health"])
    async def readyz() -> Response:
        """A model answers; with reasons when a newer one does not."""
        ready = endpoint.champion.current is not None
        reasons = [reason.to_dict() for reason in _troubles(endpoint)]
        document = {"schema": SCHEMA, "status": "ready" if ready else "not ready", "reasons": reasons}
        return _json(document, 200 if ready else 503)

    @app.get("/metrics", tags=["health"], response_class=Response,
             responses={200: {"content": {"text/plain": {}}, "description": "Prometheus exposition"}})  # fmt: skip
    async def metrics() -> Response:
        """Prometheus metrics of all replicas on this machine."""
        return Response(await asyncio.to_thread(endpoint.metrics.render), media_type=CONTENT_TYPE)


def _troubles(endpoint: Endpoint) -> list[Reason]:
    slots = (endpoint.champion, endpoint.challenger)
    # That there is no challenger is no trouble.
    found = [slot.trouble for slot in slots if slot is not None and slot.trouble is not None]
    return [reason for reason in found if reason.code != "NO_MODEL" or endpoint.champion.current is None]


def _health(state: SeriesState) -> dict[str, Any]:
    return {
        "name": state.series, "matched": state.matched, "coverage": state.coverage, "quantile": state.quantile,
        "error": state.error, "error_last_value": state.error_last_value, "drift": state.drift,
        "alarm": state.alarm, "reasons": [reason.to_dict() for reason in state.reasons],
    }  # fmt: skip


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(document), status, media_type="application/json")


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with the request bodies that routes read for themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        bodies: tuple[type[BaseModel], ...] = (DemandRequest, inference_protocol.InferRequest)
        for body in bodies:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[body.__name__] = schema
        document["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = document
    return app.openapi_schema
