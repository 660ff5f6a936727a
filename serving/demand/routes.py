"""``/v1/demand``, how its predictions have done, and the Open Inference Protocol over them."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.routing import Route

from kopt.models.registry.registry import CHALLENGER, CHAMPION
from kopt.serving.contract.common import SCHEMA
from kopt.serving.contract.demand_answers import DemandResponse
from kopt.serving.contract.live_answers import PushedDemand
from kopt.serving.contract.model_answers import ModelHealthResponse
from kopt.serving.contract.schemas import DEMAND_REQUEST, PUSH_REQUEST, SERVICE_NAME, DemandRequest, PushRequest
from kopt.serving.demand import inference_protocol
from kopt.serving.demand.monitoring import SeriesState
from kopt.serving.demand.service import DemandService
from kopt.serving.http.auth import caller_of, visible_owner
from kopt.serving.http.limits import deadline_of
from kopt.serving.http.problems import Problem, from_validation
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, read_body


def routes(app: FastAPI, service: Callable[[], DemandService]) -> None:
    """Add the paths to the application."""
    _predictions(app, service)
    _pushes(app, service)
    _health(app, service)
    inference_protocol.routes(app, service)


def _predictions(app: FastAPI, service: Callable[[], DemandService]) -> None:
    @app.post(
        "/v1/demand",
        response_model=DemandResponse,
        responses=PROBLEMS,
        tags=["demand"],
        openapi_extra=body_of(DemandRequest),
    )
    async def demand_v1() -> None:
        """Quantiles of demand and of GPUs per series and horizon; past ``X-Kopt-Deadline-Ms`` the marked fallback."""

    async def demand(request: Request) -> Response:
        request.scope["route"] = route
        body = await read_body(request, DEMAND_REQUEST)
        forecast = await service().forecast(body, deadline_of(request), caller_of(request))
        return json_answer(forecast.to_dict())

    # The route above documents; this one answers, without what FastAPI does for parameters that there are none of.
    route = Route("/v1/demand", demand, methods=["POST"], include_in_schema=False)
    app.router.routes.insert(0, route)


def _pushes(app: FastAPI, service: Callable[[], DemandService]) -> None:
    @app.put(
        "/v1/demand/{service_name:path}",
        response_model=PushedDemand,
        responses=PROBLEMS,
        tags=["demand"],
        openapi_extra=body_of(PushRequest),
    )
    async def push_demand(request: Request, service_name: str) -> Response:
        """Add complete buckets of a service's demand, which ``/v1/demand`` then answers by name. Sending again is
        harmless. The right to ``put`` the path may be limited to the services of a namespace."""
        body = await read_body(request, PUSH_REQUEST)
        try:
            name = SERVICE_NAME.validate_python(service_name)
        except ValidationError as error:
            raise from_validation(error, ("path",)) from None
        pushed = await service().push(name, body, deadline_of(request), caller_of(request))
        return json_answer(vars(pushed))


def _health(app: FastAPI, service: Callable[[], DemandService]) -> None:
    @app.get("/v1/health/models", response_model=ModelHealthResponse, responses=PROBLEMS, tags=["models"])
    async def health(request: Request) -> Response:
        """Predicted against actual per series, for the champion and for the challenger beside it."""
        answering = service()
        table, version, shadow = answering.table, answering.slot.version, answering.challenger
        if version is None:
            raise Problem(503, "No model is loaded yet.", headers={"retry-after": "5"})
        states = [] if table is None else await asyncio.to_thread(table.states, visible_owner(request))
        challenger = None if shadow is None else shadow.version
        return json_answer(
            {
                "schema": SCHEMA,
                "model": version.to_dict(),
                "challenger": challenger and challenger.to_dict(),
                "series": [_series_health(state) for state in states if state.role == CHAMPION],
                "shadow": [_series_health(state) for state in states if state.role == CHALLENGER],
            }
        )


def _series_health(state: SeriesState) -> dict[str, Any]:
    return {
        "name": state.series,
        "matched": state.matched,
        "coverage": state.coverage,
        "quantile": state.quantile,
        "error": state.error,
        "error_last_value": state.error_last_value,
        "drift": state.drift,
        "alarm": state.alarm,
        "reasons": [reason.to_dict() for reason in state.reasons],
    }
