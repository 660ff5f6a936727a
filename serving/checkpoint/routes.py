"""``/v1/checkpoint``."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.contract.checkpoint_answers import CheckpointResponse, CheckpointsResponse
from kopt.serving.contract.checkpoint_schemas import CHECKPOINT_REQUEST, CheckpointRequest
from kopt.serving.http.auth import caller_of, visible_owner
from kopt.serving.http.limits import deadline_of
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, query_text, read_body


def routes(app: FastAPI, service: Callable[[], CheckpointService]) -> None:
    """Add the path to the application."""

    @app.post(
        "/v1/checkpoint",
        response_model=CheckpointResponse,
        responses=PROBLEMS,
        tags=["checkpoint"],
        openapi_extra=body_of(CheckpointRequest),
    )
    async def follow(request: Request) -> Response:
        """Lines of a job's log in; where the job is, may it be killed now, and what would be lost out."""
        body = await read_body(request, CHECKPOINT_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        return json_answer(await service().follow(body, deadline, caller_of(request)))

    @app.get(
        "/v1/checkpoint",
        response_model=CheckpointsResponse,
        responses=PROBLEMS,
        tags=["checkpoint"],
        openapi_extra=query_text("job"),
    )
    async def jobs(request: Request) -> Response:
        """The jobs that were heard of within a day, now and over time; ``job`` names one, and its epochs are told."""
        job = request.query_params.get("job")
        return json_answer(await service().jobs(deadline_of(request), visible_owner(request), job))
