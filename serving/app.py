"""The HTTP application: typed ``/v1``, the Open Inference Protocol under ``/v2``, health, metrics, OpenAPI.

Bodies are validated by pydantic straight from the bytes and answers written by it straight from the values; FastAPI
routes and documents. Nothing here does arithmetic.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route

from kopt.core.reason import Reason
from kopt.models.loading import SHIPPED
from kopt.models.registry import RegisteredModel, RegistryError
from kopt.serving import inference_protocol
from kopt.serving.advice import STALE_S
from kopt.serving.bandwidth import BandwidthService
from kopt.serving.bandwidth_pairs_schemas import PAIRS_REQUEST, PairsKept, PairsRequest, PairsResponse
from kopt.serving.bandwidth_pairs_table import Scope
from kopt.serving.bandwidth_schemas import BANDWIDTH_REQUEST, BandwidthRequest, BandwidthResponse
from kopt.serving.checkpoint import CheckpointService
from kopt.serving.checkpoint_schemas import (
    CHECKPOINT_REQUEST,
    CheckpointRequest,
    CheckpointResponse,
    CheckpointsResponse,
)
from kopt.serving.engine import DemandService
from kopt.serving.identity import Identity, Reviewer, answering_namespace, caller_of, seen_by, sees_all_pairs
from kopt.serving.limits import Gate, deadline_of, read_json
from kopt.serving.metrics import CONTENT_TYPE, EndpointMetrics
from kopt.serving.monitoring import CHALLENGER, CHAMPION, PredictionTable, SeriesState
from kopt.serving.observer import TableObserver
from kopt.serving.problems import Problem, from_validation
from kopt.serving.schemas import (
    DEMAND_REQUEST,
    SIZING_REQUEST,
    DemandRequest,
    DemandResponse,
    ModelHealthResponse,
    ModelsResponse,
    ProblemOut,
    RecommendationsResponse,
    SizingRequest,
    SizingResponse,
    StatusResponse,
)
from kopt.serving.sizes import owner_of
from kopt.serving.sizing import SizingService
from kopt.serving.slot import REGISTRY_DOWN, ModelSlot, Slot, registry_down
from kopt.serving.wire import SCHEMA

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
REFRESH_S = 2.0
"""How often a replica looks at the registry's aliases."""
_SIZING_EVERY = 5
"""Rounds between looks at the sizing model's alias, which moves rarely."""
MOST_AT_ONCE = 64
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemOut, "content": {"application/problem+json": {}}, "description": text}
    for status, text in {
        400: "not JSON", 401: "no valid token (where callers authenticate)", 403: "no right to this path",
        408: "the body came too slowly", 413: "too large", 415: "not application/json",
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
    reviewer: Reviewer | None = None
    sizing: SizingService | None = None
    checkpoint: CheckpointService | None = None
    bandwidth: BandwidthService | None = None

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._followers: list[threading.Thread] = []

    def start(self) -> None:
        self.refresh()
        if self.observer is not None:
            self.observer.start()
        self._follow("refresh", self.refresh, itertools.repeat(self.refresh_s))
        if self.sizing is not None:
            # Not at the start: the first demand forecast must not wait for a second model.
            later = itertools.repeat(self.refresh_s * _SIZING_EVERY)
            self._follow("refresh-sizing", self.sizing.refresh, itertools.chain([self.refresh_s], later))
        if self.checkpoint is not None:
            later = itertools.repeat(self.refresh_s * _SIZING_EVERY)
            self._follow("refresh-checkpoint", self.checkpoint.refresh, itertools.chain([self.refresh_s], later))
        if self.bandwidth is not None:
            later = itertools.repeat(self.refresh_s * _SIZING_EVERY)
            self._follow("refresh-bandwidth", self.bandwidth.refresh, itertools.chain([self.refresh_s], later))
        threading.Thread(target=self.service.open_store, name="feature-store", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._followers:
            thread.join(timeout=10.0)
        if self.observer is not None:
            self.observer.stop()
        self.service.close()
        if self.sizing is not None:
            self.sizing.close()
        if self.checkpoint is not None:
            self.checkpoint.close()
        if self.bandwidth is not None:
            self.bandwidth.close()
        if self.table is not None:
            self.table.close()

    @property
    def answering(self) -> tuple[Slot[Any], ...]:
        """The slots whose models answer callers, one per predictor."""
        others = tuple(one.slot for one in (self.sizing, self.checkpoint, self.bandwidth) if one is not None)
        return (self.champion, *others)

    @property
    def slots(self) -> tuple[Slot[Any], ...]:
        """All slots: those that answer, and the challenger that is only watched."""
        return self.answering if self.challenger is None else (*self.answering, self.challenger)

    @property
    def alive(self) -> bool:
        """Whether the aliases are still followed."""
        return bool(self._followers) and all(thread.is_alive() for thread in self._followers)

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

    def _follow(self, name: str, refresh: Callable[[], object], pauses_s: Iterator[float]) -> None:
        """Refresh after each pause until the end, in a thread: loading one predictor's model delays no other's."""

        def follow() -> None:
            while not self._ending.wait(next(pauses_s)):
                try:
                    refresh()
                except Exception:  # noqa: BLE001 - edge of a thread: the model that serves goes on serving
                    _LOG.exception("the aliases could not be read")

        self._followers.append(threading.Thread(target=follow, name=name, daemon=True))
        self._followers[-1].start()


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
    _sizing(app, endpoint)
    _checkpoint(app, endpoint)
    _bandwidth(app, endpoint)
    _models(app, endpoint)
    _status(app, endpoint)
    inference_protocol.routes(app, endpoint.service)
    if endpoint.reviewer is not None:
        app.add_middleware(Identity, reviewer=endpoint.reviewer)
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
    @app.post(
        "/v1/demand", response_model=DemandResponse, responses=_PROBLEMS, tags=["demand"],
        openapi_extra=_body_of(DemandRequest),
    )  # fmt: skip
    async def demand_v1() -> None:
        """Quantiles of demand and of GPUs per series and horizon; past ``X-Kopt-Deadline-Ms`` the marked fallback."""

    async def demand(request: Request) -> Response:
        request.scope["route"] = route
        asked = await _asked(request, DEMAND_REQUEST)
        forecast = await endpoint.service.forecast(asked, deadline_of(request), caller_of(request))
        return _json(forecast.to_dict())

    # The route above documents; this one answers, without what FastAPI does for parameters that there are none of.
    route = Route("/v1/demand", demand, methods=["POST"], include_in_schema=False)
    app.router.routes.insert(0, route)

    @app.get("/v1/recommendations", response_model=RecommendationsResponse, responses=_PROBLEMS, tags=["demand"])
    async def recommendations(request: Request) -> Response:
        """Lending advice per pool (services that named ``gpus`` and ``capacity_per_gpu``), and sizes of job types."""
        table, since_s = endpoint.table, time.time() - STALE_S
        found = [] if table is None else await asyncio.to_thread(table.advice, seen_by(request), since_s)
        sizing = None if endpoint.sizing is None else endpoint.sizing.table
        seen = seen_by(request)
        owner = None if seen is None else owner_of(seen)
        sizes = [] if sizing is None else await asyncio.to_thread(sizing.advice, owner)
        documents = [json.loads(document) for document in found]
        return _json({"schema": SCHEMA, "recommendations": documents, "sizes": sizes})


def _sizing(app: FastAPI, endpoint: Endpoint) -> None:
    @app.post(
        "/v1/sizing", response_model=SizingResponse, responses=_PROBLEMS, tags=["sizing"],
        openapi_extra=_body_of(SizingRequest),
    )  # fmt: skip
    async def sizing(request: Request) -> Response:
        """GPU memory that a workload needs, why, and what to ask for. Scripts are read, never run, here."""
        if endpoint.sizing is None:
            raise Problem(503, "This endpoint answers no sizing questions.")
        asked = await _asked(request, SIZING_REQUEST)
        tells = asked.trace is not None or asked.profile is not None
        namespace = await answering_namespace(request, asked.namespace, tells=tells)
        made = await endpoint.sizing.estimate(asked, deadline_of(request), caller_of(request), namespace)
        return _json(made.to_dict())

    # As for demand: FastAPI documents, this answers.
    async def quick(request: Request) -> Response:
        request.scope["route"] = route
        return await sizing(request)

    route = Route("/v1/sizing", quick, methods=["POST"], include_in_schema=False)
    app.router.routes.insert(0, route)


def _checkpoint(app: FastAPI, endpoint: Endpoint) -> None:
    def service() -> CheckpointService:
        if endpoint.checkpoint is None:
            raise Problem(503, "This endpoint follows no jobs.")
        return endpoint.checkpoint

    @app.post(
        "/v1/checkpoint", response_model=CheckpointResponse, responses=_PROBLEMS, tags=["checkpoint"],
        openapi_extra=_body_of(CheckpointRequest),
    )  # fmt: skip
    async def follow(request: Request) -> Response:
        """Lines of a job's log in; where the job is, may it be killed now, and what would be lost out."""
        asked = await _asked(request, CHECKPOINT_REQUEST)
        deadline = deadline_of(request).within(asked.deadline_ms)
        return _json(await service().follow(asked, deadline, caller_of(request)))

    @app.get(
        "/v1/checkpoint", response_model=CheckpointsResponse, responses=_PROBLEMS, tags=["checkpoint"],
        openapi_extra={"parameters": [{"name": "job", "in": "query", "required": False, "schema": {"type": "string"}}]},
    )  # fmt: skip
    async def jobs(request: Request) -> Response:
        """The jobs that were heard of within a day, now and over time; ``job`` names one."""
        job = request.query_params.get("job")
        return _json(await service().jobs(deadline_of(request), seen_by(request), job))


def _bandwidth(app: FastAPI, endpoint: Endpoint) -> None:
    def service() -> BandwidthService:
        if endpoint.bandwidth is None:
            raise Problem(503, "This endpoint answers no questions about bandwidth.")
        return endpoint.bandwidth

    @app.post(
        "/v1/bandwidth", response_model=BandwidthResponse, responses=_PROBLEMS, tags=["bandwidth"],
        openapi_extra=_body_of(BandwidthRequest),
    )  # fmt: skip
    async def bandwidth(request: Request) -> Response:
        """What sets of a node's GPUs reach together in one collective, and which to take of those that are free."""
        asked = await _asked(request, BANDWIDTH_REQUEST)
        sees_all = asked.cluster is not None and await sees_all_pairs(request)
        deadline = deadline_of(request).within(asked.deadline_ms)
        made = await service().answer(asked, deadline, Scope(caller_of(request), sees_all))
        return _json(made.to_dict())

    @app.post(
        "/v1/bandwidth/pairs", response_model=PairsKept, responses=_PROBLEMS, tags=["bandwidth"],
        openapi_extra=_body_of(PairsRequest),
    )  # fmt: skip
    async def keep(request: Request) -> Response:
        """What pairs of a cluster's nodes were measured to reach; the newest of each pair is kept."""
        asked = await _asked(request, PAIRS_REQUEST)
        deadline = deadline_of(request).within(asked.deadline_ms)
        return _json(await service().keep(asked, deadline, caller_of(request)))

    @app.get(
        "/v1/bandwidth/pairs", response_model=PairsResponse, responses=_PROBLEMS, tags=["bandwidth"],
        openapi_extra={
            "parameters": [{"name": "cluster", "in": "query", "required": False, "schema": {"type": "string"}}]
        },
    )  # fmt: skip
    async def pairs(request: Request) -> Response:
        """Measured pairs of a cluster beside what is predicted of them, and its nodes' health; or which clusters
        there are."""
        cluster = request.query_params.get("cluster")
        return _json(await service().shown(cluster, deadline_of(request), seen_by(request), caller_of(request)))


async def _asked(request: Request, kind: TypeAdapter[T]) -> T:
    """The validated body. Raises Problem."""
    content = await read_json(request)
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise from_validation(error) from None


def _body_of(kind: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _models(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/v1/models", response_model=ModelsResponse, responses=_PROBLEMS, tags=["models"])
    async def models() -> Response:
        """Registered versions of every predictor and which ones answer; why a newer one does not."""
        troubles = _troubles(endpoint)
        try:
            known = await asyncio.to_thread(endpoint.versions)
            rows = _registered(known, endpoint)
        except RegistryError as error:
            rows = _loaded(endpoint)
            if all(reason.code != REGISTRY_DOWN for reason in troubles):
                troubles.append(registry_down(error))
        return _json({"schema": SCHEMA, "models": rows, "refused": [reason.to_dict() for reason in troubles]})

    @app.get("/v1/health/models", response_model=ModelHealthResponse, responses=_PROBLEMS, tags=["models"])
    async def health(request: Request) -> Response:
        """Predicted against actual per series, for the champion and for the challenger beside it."""
        table, version = endpoint.table, endpoint.champion.version
        if version is None:
            raise Problem(503, "No model is loaded yet.", headers={"retry-after": "5"})
        states = [] if table is None else await asyncio.to_thread(table.states, seen_by(request))
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


def _registered(models: Sequence[RegisteredModel], endpoint: Endpoint) -> list[dict[str, Any]]:
    """Registered versions; and what serves without being registered, such as the package's default model."""
    known = {(model.name, model.version) for model in models}
    serving = {(slot.name, slot.version.version) for slot in endpoint.answering if slot.version is not None}
    rows = [
        {"name": model.name, "alias": ",".join(model.aliases), "version": model.version, "digest": model.digest,
         "serving": (model.name, model.version) in serving}
        for model in models
    ]  # fmt: skip
    return rows + [row for row in _loaded(endpoint) if row["serving"] and (row["name"], row["version"]) not in known]


def _loaded(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The versions in memory: all that is known while the registry does not answer."""
    found = []
    for slot in endpoint.slots:
        if slot.version is not None:
            alias = "" if slot.version.version == SHIPPED else slot.alias
            found.append({**slot.version.to_dict(), "alias": alias, "serving": slot in endpoint.answering})
    return found


def _troubles(endpoint: Endpoint) -> list[Reason]:
    # That there is no challenger is no trouble.
    found = [slot.trouble for slot in endpoint.slots if slot.trouble is not None]
    kept = [reason for reason in found if reason.code != "NO_MODEL" or endpoint.champion.current is None]
    # All slots share a registry: its outage is told once.
    return list({reason.message: reason for reason in kept}.values())


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
        bodies: tuple[type[BaseModel], ...] = (
            DemandRequest, SizingRequest, CheckpointRequest, BandwidthRequest, PairsRequest,
            inference_protocol.InferRequest,
        )  # fmt: skip
        for body in bodies:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[body.__name__] = schema
        document["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = document
    return app.openapi_schema
