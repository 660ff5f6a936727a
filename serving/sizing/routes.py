"""``/v1/sizing``."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from kopt.serving.contract.schemas import SIZING_REQUEST, SizingRequest
from kopt.serving.contract.sizing_answers import SizingResponse
from kopt.serving.http.auth import answering_namespace, caller_of
from kopt.serving.http.limits import deadline_of
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, read_body
from kopt.serving.sizing.service import SizingService


def routes(app: FastAPI, service: Callable[[], SizingService]) -> None:
    """Add the path to the application."""

    @app.post(
        "/v1/sizing",
        response_model=SizingResponse,
        responses=PROBLEMS,
        tags=["sizing"],
        openapi_extra=body_of(SizingRequest),
    )
    async def sizing(request: Request) -> Response:
        """GPU memory that a workload needs, why, and what to ask for. Scripts are read, never run, here."""
        answering = service()
        body = await read_body(request, SIZING_REQUEST)
        tells = body.trace is not None or body.profile is not None or bool(body.measured_steps)
        namespace = await answering_namespace(request, body.namespace, tells=tells)
        estimate = await answering.estimate(body, deadline_of(request), caller_of(request), namespace)
        return json_answer(estimate.to_dict())

    # The route above documents; this one answers, without what FastAPI does for parameters that there are none of.
    async def quick(request: Request) -> Response:
        request.scope["route"] = route
        return await sizing(request)

    route = Route("/v1/sizing", quick, methods=["POST"], include_in_schema=False)
    app.router.routes.insert(0, route)
