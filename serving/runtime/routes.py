"""``/v1/runtime`` and below it ``jobs``, ``runs``, ``starts`` and ``queues``."""

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from kopt.serving.contract.runtime_answers import (
    QueuesResponse,
    RunsKept,
    RunsResponse,
    RunTimeResponse,
    RunTimesResponse,
    StartsResponse,
)
from kopt.serving.contract.runtime_schemas import (
    RUN_TIMES_REQUEST,
    RUNS_REQUEST,
    RUNTIME_REQUEST,
    STARTS_REQUEST,
    RunsRequest,
    RunTimeRequestIn,
    RunTimesRequest,
    StartsRequest,
)
from kopt.serving.http.auth import RUNTIME_QUEUES, caller_of, sees_all_measurements, visible_owner
from kopt.serving.http.limits import deadline_of
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, read_body
from kopt.serving.runtime.service import RunTimeService


def routes(app: FastAPI, service: Callable[[], RunTimeService]) -> None:
    """Add the paths to the application."""

    @app.post(
        "/v1/runtime",
        response_model=RunTimeResponse,
        responses=PROBLEMS,
        tags=["runtime"],
        openapi_extra=body_of(RunTimeRequestIn),
    )
    async def run_time(request: Request) -> Response:
        """How long a job will run, or go on running: quantiles in seconds, and whose runs they are from."""
        body = await read_body(request, RUNTIME_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        sees_all = await sees_all_measurements(request, RUNTIME_QUEUES)
        return json_answer(await service().answer(body, deadline, caller_of(request), sees_all=sees_all))

    @app.post(
        "/v1/runtime/jobs",
        response_model=RunTimesResponse,
        responses=PROBLEMS,
        tags=["runtime"],
        openapi_extra=body_of(RunTimesRequest),
    )
    async def run_times(request: Request) -> Response:
        """What is left of many jobs, as a queue's order needs it: quantiles in seconds."""
        body = await read_body(request, RUN_TIMES_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        sees_all = await sees_all_measurements(request, RUNTIME_QUEUES)
        return json_answer(await service().answers(body, deadline, caller_of(request), sees_all=sees_all))

    @app.post(
        "/v1/runtime/runs",
        response_model=RunsKept,
        responses=PROBLEMS,
        tags=["runtime"],
        openapi_extra=body_of(RunsRequest),
    )
    async def keep(request: Request) -> Response:
        """Jobs that started or ended; what is answered about others of their queue rests on them."""
        body = await read_body(request, RUNS_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        return json_answer(await service().keep(body, deadline, caller_of(request)))

    @app.get("/v1/runtime/runs", response_model=RunsResponse, responses=PROBLEMS, tags=["runtime"])
    async def runs(
        request: Request,
        cluster: Annotated[str, Query(max_length=253)] = "",
        after: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
    ) -> Response:
        """The runs of a cluster that were sent, 5,000 at a time."""
        sees_all = await sees_all_measurements(request, RUNTIME_QUEUES)
        deadline = deadline_of(request)
        return json_answer(await service().runs(cluster, after, deadline, caller_of(request), sees_all=sees_all))

    @app.post(
        "/v1/runtime/starts",
        response_model=StartsResponse,
        responses=PROBLEMS,
        tags=["runtime"],
        openapi_extra=body_of(StartsRequest),
    )
    async def starts(request: Request) -> Response:
        """Starts that were predicted from run times, corrected by how earlier ones of their queues came true; the first
        of each wait is kept and compared with the start that ``/v1/runtime/runs`` tells."""
        body = await read_body(request, STARTS_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        sees_all = await sees_all_measurements(request, RUNTIME_QUEUES)
        return json_answer(await service().starts(body, deadline, caller_of(request), sees_all=sees_all))

    @app.get(RUNTIME_QUEUES, response_model=QueuesResponse, responses=PROBLEMS, tags=["runtime"])
    async def queues(request: Request) -> Response:
        """How answers have held in each queue, and where the model has drifted."""
        return json_answer(await service().queues(deadline_of(request), visible_owner(request)))
