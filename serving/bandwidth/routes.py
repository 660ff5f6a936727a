"""``/v1/bandwidth`` and ``/v1/bandwidth/pairs``."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.contract.bandwidth.answers import BandwidthResponse
from kopt.serving.contract.bandwidth.pairwise_answers import PairsKept, PairsResponse
from kopt.serving.contract.bandwidth.pairwise_schemas import PAIRWISE_REQUEST, PairsRequest
from kopt.serving.contract.bandwidth.schemas import BANDWIDTH_REQUEST, BandwidthRequest
from kopt.serving.http.auth import caller_of, sees_all_measurements, visible_owner
from kopt.serving.http.limits import deadline_of
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, query_text, read_body
from kopt.serving.pairwise.table import Scope


def routes(app: FastAPI, service: Callable[[], BandwidthService]) -> None:
    """Add the paths to the application."""

    @app.post(
        "/v1/bandwidth",
        response_model=BandwidthResponse,
        responses=PROBLEMS,
        tags=["bandwidth"],
        openapi_extra=body_of(BandwidthRequest),
    )
    async def bandwidth(request: Request) -> Response:
        """What sets of a node's GPUs reach together in one collective, and which to take of those that are free."""
        body = await read_body(request, BANDWIDTH_REQUEST)
        sees_all = body.cluster is not None and await sees_all_measurements(request)
        deadline = deadline_of(request).within(body.deadline_ms)
        answer = await service().answer(body, deadline, Scope(caller_of(request), sees_all))
        return json_answer(answer)

    @app.post(
        "/v1/bandwidth/pairs",
        response_model=PairsKept,
        responses=PROBLEMS,
        tags=["bandwidth"],
        openapi_extra=body_of(PairsRequest),
    )
    async def keep(request: Request) -> Response:
        """What pairs of a cluster's nodes were measured to reach; the newest of each pair is kept."""
        body = await read_body(request, PAIRWISE_REQUEST)
        deadline = deadline_of(request).within(body.deadline_ms)
        return json_answer(await service().keep(body, deadline, caller_of(request)))

    @app.get(
        "/v1/bandwidth/pairs",
        response_model=PairsResponse,
        responses=PROBLEMS,
        tags=["bandwidth"],
        openapi_extra=query_text("cluster"),
    )
    async def pairs(request: Request) -> Response:
        """Measured pairs of a cluster beside what is predicted of them, and its nodes' health; or which clusters
        there are."""
        cluster = request.query_params.get("cluster")
        return json_answer(
            await service().list_pairs(cluster, deadline_of(request), visible_owner(request), caller_of(request))
        )
