"""The HTTP application: typed ``/v1``, the Open Inference Protocol under ``/v2``, health, metrics, OpenAPI.

Bodies are validated by pydantic straight from the bytes and answers written by it straight from the values; FastAPI
routes and documents. Nothing here does arithmetic. What belongs to one predictor comes from ``services``.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.models.registry.aliases import SHIPPED
from kopt.models.registry.registry import RegisteredModel, RegistryError
from kopt.serving.audit.routes import routes as audit_routes
from kopt.serving.audit.service import AuditService
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.model_slot import REGISTRY_DOWN, Slot, registry_down
from kopt.serving.base.owners import owner_of
from kopt.serving.base.service import MOST_AT_ONCE, REFRESH_S, PredictorService, S
from kopt.serving.contract.audit_schemas import AuditRequest
from kopt.serving.contract.common import SCHEMA
from kopt.serving.contract.model_answers import ModelsResponse, PredictorsHealthResponse
from kopt.serving.contract.recommendation_answers import RecommendationsResponse
from kopt.serving.contract.schemas import ProblemOut, StatusResponse
from kopt.serving.endpoint.services import SERVICES
from kopt.serving.http.auth import OPEN, Identity, Reviewer, visible_owner
from kopt.serving.http.hosts import HostCheck
from kopt.serving.http.limits import FairShare, Gate
from kopt.serving.http.metrics import CONTENT_TYPE, EndpointMetrics
from kopt.serving.http.problems import Problem
from kopt.serving.http.routing import PROBLEMS, json_answer

_LOG = logging.getLogger(__name__)
_PUBLISHED_NAMES = {
    "kopt__serving__contract__bandwidth_answers__ShareOut": "kopt__serving__bandwidth_schemas__ShareOut",
    "kopt__serving__contract__sizing_answers__ShareOut": "kopt__serving__schemas__ShareOut",
}
"""Two classes share a name, so it is published with the module; moved modules keep the published one."""


@dataclass
class Endpoint:
    """Everything one replica holds: its services by predictor. ``start`` loads the models that it needs to be ready
    and keeps all of them fresh until ``stop``."""

    services: Mapping[str, PredictorService[Any]]
    metrics: EndpointMetrics
    versions: Callable[[], tuple[RegisteredModel, ...]] = tuple
    refresh_s: float = REFRESH_S
    most_at_once: int = MOST_AT_ONCE
    reviewer: Reviewer | None = None
    hosts: tuple[str, ...] = ()
    """Names under which it is reached, see ``hosts.names_of``."""
    audit: AuditService | None = None

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._followers: list[threading.Thread] = []

    def service(self, kind: type[S]) -> S:
        """The service of a type. Raises LookupError where this endpoint has none."""
        for service in self.services.values():
            if isinstance(service, kind):
                return service
        raise LookupError(f"the endpoint has no {kind.__name__}")

    def start(self) -> None:
        for service in self.services.values():
            if service.required:
                service.refresh()
        for name, service in self.services.items():
            pauses_s = itertools.repeat(self.refresh_s * service.refresh_rounds)
            self._follow(f"refresh-{name}", service.refresh, itertools.chain([self.refresh_s], pauses_s))
            service.start()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._followers:
            thread.join(timeout=10.0)
        for service in self.services.values():
            service.close()
        if self.audit is not None:
            self.audit.close()

    def refresh(self) -> None:
        """Refresh once the models without which it is not ready (blocks: registry and disk)."""
        for service in self.services.values():
            if service.required:
                service.refresh()

    @property
    def ready(self) -> bool:
        """Whether all required models are loaded."""
        needed = [service for service in self.services.values() if service.required]
        return bool(needed) and all(service.slot.current is not None for service in needed)

    @property
    def answering(self) -> tuple[Slot[Any], ...]:
        """The slots of the models that answer, one per predictor."""
        return tuple(service.slot for service in self.services.values())

    @property
    def slots(self) -> tuple[Slot[Any], ...]:
        """All slots: those that answer, then challengers."""
        watched = (slot for service in self.services.values() for slot in service.slots[1:])
        return (*self.answering, *watched)

    @property
    def canary_shares(self) -> dict[ModelVersion, int]:
        """Challengers on trial, with the percentage of questions that each answers now."""
        return {
            service.challenger.version: service.canary.percent
            for service in self.services.values()
            if service.challenger is not None and service.challenger.version is not None
        }

    @property
    def alive(self) -> bool:
        """Whether all refreshing threads are alive."""
        return bool(self._followers) and all(thread.is_alive() for thread in self._followers)

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
        title="Kaiwo Optimizer predictions",
        version="1",
        description="Typed predictions with intervals and reasons.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    _errors(app)
    for spec in SERVICES:
        spec.routes(app, _lookup(endpoint, spec.name, spec.absent))
    audit_routes(app, _audit_of(endpoint))
    _recommendations(app, endpoint)
    _models(app, endpoint)
    _status(app, endpoint)
    app.add_middleware(FairShare, most=endpoint.most_at_once)
    if endpoint.reviewer is not None:
        app.add_middleware(Identity, reviewer=endpoint.reviewer)
    app.add_middleware(HostCheck, names=endpoint.hosts)
    app.add_middleware(Gate, metrics=endpoint.metrics, most=endpoint.most_at_once)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _lookup(endpoint: Endpoint, name: str, absent: str) -> Callable[[], Any]:
    def service() -> PredictorService[Any]:
        if name not in endpoint.services:
            raise Problem(503, absent)
        return endpoint.services[name]

    return service


def _audit_of(endpoint: Endpoint) -> Callable[[], AuditService]:
    def service() -> AuditService:
        if endpoint.audit is None:
            raise Problem(503, "This endpoint keeps no audit log.")
        return endpoint.audit

    return service


def _errors(app: FastAPI) -> None:
    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response()

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Problem(error.status_code, str(error.detail), headers=dict(error.headers or {})).response()

    async def database(_: Request, error: Exception) -> Response:
        text = f"What the endpoint keeps cannot be reached: {error}. Nothing is lost; ask again."
        return Problem(503, text, headers={"retry-after": "2"}).response()

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(DatabaseError, database)
    app.add_exception_handler(HTTPException, http)


def _recommendations(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/v1/recommendations", response_model=RecommendationsResponse, responses=PROBLEMS, tags=["demand"])
    async def recommendations(request: Request) -> Response:
        """Lending advice per pool (services that named ``gpus`` and ``capacity_per_gpu``), and sizes of job types."""
        document: dict[str, Any] = {"schema": SCHEMA, "recommendations": [], "sizes": []}
        for service in endpoint.services.values():
            document.update(await service.advice(visible_owner(request)))
        return json_answer(document)


def _models(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/v1/models", response_model=ModelsResponse, responses=PROBLEMS, tags=["models"])
    async def models() -> Response:
        """Registered versions of every predictor and which ones answer; why a newer one does not."""
        refused = _refused(endpoint)
        try:
            versions = await asyncio.to_thread(endpoint.versions)
            rows = _registered(versions, endpoint)
        except RegistryError as error:
            rows = _loaded(endpoint)
            if all(reason.code != REGISTRY_DOWN for reason in refused):
                refused.append(registry_down(error))
        return json_answer({"schema": SCHEMA, "models": rows, "refused": [reason.to_dict() for reason in refused]})

    @app.get("/v1/health/predictors", response_model=PredictorsHealthResponse, responses=PROBLEMS, tags=["models"])
    async def predictors_health(request: Request) -> Response:
        """Predicted against measured, for predictors whose answers are measured once and not over time."""
        only_of = visible_owner(request)
        owner = None if only_of is None else owner_of(only_of)
        compared = [service.compared for service in endpoint.services.values()]
        entries = [entry for each in compared if each is not None for entry in each.report(owner)]
        return json_answer({"schema": SCHEMA, "predictors": entries})


def _status(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/healthz", response_model=StatusResponse, tags=["health"])
    async def healthz() -> Response:
        """The process answers."""
        return json_answer({"schema": SCHEMA, "status": "live", "reasons": []})

    @app.get("/readyz", response_model=StatusResponse, responses={503: {"model": StatusResponse}}, tags=["health"])
    async def readyz() -> Response:
        """A model answers; with reasons when a newer one does not."""
        ready = endpoint.ready
        reasons = [reason.to_dict() for reason in _refused(endpoint)]
        document = {"schema": SCHEMA, "status": "ready" if ready else "not ready", "reasons": reasons}
        return json_answer(document, 200 if ready else 503)

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus exposition"}},
    )
    async def metrics() -> Response:
        """Prometheus metrics of all replicas on this machine."""
        return Response(await asyncio.to_thread(endpoint.metrics.render), media_type=CONTENT_TYPE)


def _registered(models: Sequence[RegisteredModel], endpoint: Endpoint) -> list[dict[str, Any]]:
    """Registered versions; and what serves without being registered, such as the package's default model."""
    registered = {(model.name, model.version) for model in models}
    serving = {(slot.name, slot.version.version) for slot in endpoint.answering if slot.version is not None}
    shares = endpoint.canary_shares
    rows = [
        {
            "name": model.name,
            "alias": ",".join(model.aliases),
            "version": model.version,
            "digest": model.digest,
            "serving": (model.name, model.version) in serving,
            "canary_percent": shares.get(model.model_version, 0),
        }
        for model in models
    ]
    return rows + [
        row for row in _loaded(endpoint) if row["serving"] and (row["name"], row["version"]) not in registered
    ]


def _loaded(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The versions in memory: all that is known while the registry does not answer."""
    result = []
    for slot in endpoint.slots:
        if slot.version is not None:
            alias = "" if slot.version.version == SHIPPED else slot.alias
            share = endpoint.canary_shares.get(slot.version, 0)
            serving = slot in endpoint.answering
            result.append({**slot.version.to_dict(), "alias": alias, "serving": serving, "canary_percent": share})
    return result


def _refused(endpoint: Endpoint) -> list[Reason]:
    """Why newer models do not serve. That there is no challenger is no error."""
    missing = () if endpoint.ready else endpoint.answering
    errors = ((slot, slot.error) for slot in endpoint.slots if slot.error is not None)
    kept = [reason for slot, reason in errors if reason.code != "NO_MODEL" or slot in missing]
    kept += [service.canary.stopped for service in endpoint.services.values() if service.canary.stopped is not None]
    # All slots share a registry: its outage is reported once.
    return list({reason.message: reason for reason in kept}.values())


_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "Where the endpoint runs with KOPT_AUTH=token: a token of a service account for the audience "
    "kopt-predictions (kubectl create token ACCOUNT --audience=kopt-predictions).",
}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with the request bodies that routes read for themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        request_bodies = (body for spec in SERVICES for body in spec.requests)
        bodies: list[type[BaseModel]] = [ProblemOut, AuditRequest, *request_bodies]
        for body in bodies:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[body.__name__] = schema
        document["components"]["schemas"] = dict(sorted(schemas.items()))
        document["components"]["securitySchemes"] = {"token": _TOKEN}
        # Without authentication on one's own machine; the probes are open everywhere.
        document["security"] = [{"token": []}, {}]
        for path in set(OPEN) & set(document["paths"]):
            for operation in document["paths"][path].values():
                operation["security"] = []
        app.openapi_schema = _renamed(document)
    return app.openapi_schema


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(document)
    for name, published in _PUBLISHED_NAMES.items():
        text = text.replace(name, published)
    renamed: dict[str, Any] = json.loads(text)
    return renamed
