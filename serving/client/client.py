"""The client of the prediction endpoint, on httpx alone (no Ray, no torch, no numpy).

Every call has a deadline. A demand forecast never fails because the platform is down: within the deadline it comes
from the endpoint or, marked ``fallback`` with the reason, from ``serving.client.fallback_demand`` on the history in
the query. Only a request that the endpoint refuses (RequestRefused) raises: trying again would not help.

    client = PredictionClient("http://127.0.0.1:8700")
    forecast = client.demand(DemandQuery([History("chat", t=times, value=requests)], capacity_per_gpu=600))
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote, urlencode

import httpx

from kopt.core.audit import SealedRecord
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import PredictedStart
from kopt.core.workload.run_time import JobRun, RunTimeQuestion
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.client.fallback_answer import fallback_answer
from kopt.serving.client.fallback_demand import REACTIVE_MARGIN
from kopt.serving.client.transport import DEADLINE_S, EndpointFailure, RequestRefused, Transport
from kopt.serving.contract.audit_answers import (
    AuditKept,
    AuditQuery,
    AuditResponse,
    audit_request,
    parse_audit,
    parse_audit_kept,
)
from kopt.serving.contract.bandwidth.answers import BandwidthQuery, BandwidthResponse, WrongQuestion, parse_bandwidth
from kopt.serving.contract.bandwidth.pairwise_answers import (
    PairsKept,
    PairsResponse,
    pairwise_request,
    parse_kept,
    parse_pairwise,
)
from kopt.serving.contract.checkpoint_answers import CheckpointsResponse, parse_jobs
from kopt.serving.contract.common import AnswerError
from kopt.serving.contract.demand_answers import (
    DemandForecast,
    DemandQuery,
    parse_forecast,
)
from kopt.serving.contract.live_answers import PushedDemand, parse_pushed
from kopt.serving.contract.model_answers import (
    ModelHealthResponse,
    ModelsResponse,
    PredictorsHealthResponse,
    parse_health,
    parse_models,
    parse_predictors_health,
)
from kopt.serving.contract.recommendation_answers import RecommendationOut, parse_recommendations
from kopt.serving.contract.runtime_answers import (
    QueuesResponse,
    RunsKept,
    RunsResponse,
    RunTimeResponse,
    RunTimesResponse,
    StartsResponse,
    parse_queues,
    parse_run_time,
    parse_run_times,
    parse_runs,
    parse_runs_kept,
    parse_starts,
    run_times_request,
    runs_request,
    starts_request,
)
from kopt.serving.contract.size_advice import SizeAdvice

_LINKS_S = 0.5
"""Limit for the bandwidth fallback: sets without symmetry take milliseconds each."""


class AsyncPredictionClient:
    """``url`` is the endpoint's root. ``token`` gives the bearer token for each call, where the endpoint asks for one;
    by default ``serving.client.tokens.token_from`` the environment, if there is one there.

    After repeated failures no requests are sent for up to ``longest_pause_s`` at a time.
    ``transport`` replaces the network (an ASGI application in tests). Use as an async context manager, or ``close``.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = DEADLINE_S,
        token: Callable[[], str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        lending: LendingSettings | None = None,
        longest_pause_s: float = 30.0,
    ) -> None:
        self._transport = Transport(
            url, deadline_s=deadline_s, token=token, transport=transport, clock=clock, longest_pause_s=longest_pause_s
        )
        self._lending = lending or LendingSettings(reactive_margin=REACTIVE_MARGIN)

    @property
    def answered(self) -> int:
        """Usable answers since the process began."""
        return self._transport.answered

    @property
    def failed(self) -> int:
        """Errors, and answers that were broken or not in time; none for an endpoint that is not there or busy."""
        return self._transport.failed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
        """Forecasts within ``deadline_s``; the fallback, marked, when the endpoint cannot give them.

        Raises RequestRefused when the query itself is wrong.
        """
        document = query.to_dict()
        try:
            return parse_forecast(await self._transport.send("POST", "/v1/demand", document, deadline_s))
        except AnswerError as error:
            return fallback_answer(query, Reason("ENDPOINT_ERROR", str(error)), self._lending)
        except EndpointFailure as failure:
            return fallback_answer(query, failure.reason, self._lending)

    async def push_demand(
        self, service: str, t: Sequence[float], value: Sequence[float | None], *, deadline_s: float | None = None
    ) -> PushedDemand:
        """Complete buckets of five minutes of a service's demand, by their start. Sending again is harmless.

        Raises as ``models`` does.
        """
        document = {"t": list(t), "value": list(value)}
        return parse_pushed(await self._transport.send("PUT", f"/v1/demand/{quote(service)}", document, deadline_s))

    async def ask(
        self, predictor: str, request: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Mapping[str, Any]:
        """The answer of ``/v1/PREDICTOR`` as it came, for any predictor. Raises EndpointFailure or RequestRefused."""
        document = request
        return await self._transport.send("POST", f"/v1/{predictor}", document, deadline_s)

    async def sizing(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> Mapping[str, Any]:
        """The answer of ``/v1/sizing`` as it came. Raises EndpointFailure or RequestRefused."""
        return await self.ask("sizing", request, deadline_s=deadline_s)

    async def checkpoint(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> Mapping[str, Any]:
        """The answer of ``/v1/checkpoint`` as it came: lines of a job's log in, its state out.

        Sending again is harmless where the lines carry their numbers. Raises EndpointFailure or RequestRefused.
        """
        return await self.ask("checkpoint", request, deadline_s=deadline_s)

    async def bandwidth(self, query: BandwidthQuery, *, deadline_s: float | None = None) -> BandwidthResponse:
        """What sets of GPUs reach together, within ``deadline_s``; by links and algorithms alone, marked as fallback
        and with wide intervals, when the endpoint cannot say.

        Raises RequestRefused when the query itself is wrong, EndpointFailure where even the fallback takes too long.
        """
        # Imported before the deadline starts, and only on use: it loads the parsers of topology tools.
        from kopt.serving.client.fallback_bandwidth import fallback_bandwidth

        document = query.to_dict()
        try:
            return parse_bandwidth(await self._transport.send("POST", "/v1/bandwidth", document, deadline_s))
        except AnswerError as error:
            failure = EndpointFailure("ENDPOINT_ERROR", str(error))
        except EndpointFailure as error:
            failure = error
        try:
            return fallback_bandwidth(
                query, failure.reason, _raising(failure, self._transport.clock() + _LINKS_S, self._transport.clock)
            )
        except WrongQuestion as error:
            raise RequestRefused(422, str(error)) from error

    async def runtime(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> RunTimeResponse:
        """How long a job will run. Raises as ``models`` does."""
        return parse_run_time(await self.ask("runtime", request, deadline_s=deadline_s))

    async def run_times(
        self, questions: Mapping[str, RunTimeQuestion], cluster: str = "", *, deadline_s: float | None = None
    ) -> RunTimesResponse:
        """What is left of many jobs, 2,000 at most, all asked at one time. Raises as ``models`` does."""
        document = run_times_request(questions, cluster)
        return parse_run_times(await self._transport.send("POST", "/v1/runtime/jobs", document, deadline_s))

    async def send_runs(
        self, runs: Sequence[JobRun], cluster: str = "", *, deadline_s: float | None = None
    ) -> RunsKept:
        """Jobs that started or ended, 5,000 at most. Sending again is harmless. Raises as ``models`` does."""
        document = runs_request(runs, cluster)
        return parse_runs_kept(await self._transport.send("POST", "/v1/runtime/runs", document, deadline_s))

    async def runs(self, cluster: str = "", after: int = 0, *, deadline_s: float | None = None) -> RunsResponse:
        """Runs that were sent, 5,000 at most, in the order in which they became known. Raises as ``models`` does."""
        query = urlencode({"cluster": cluster, "after": after})
        return parse_runs(await self._transport.get(f"/v1/runtime/runs?{query}", deadline_s))

    async def calibrated_starts(
        self, starts: Sequence[PredictedStart], cluster: str = "", *, deadline_s: float | None = None
    ) -> StartsResponse:
        """Predicted starts, 2,000 at most, each with a p50 and a p90, as earlier ones of their queues came true. They
        are kept to be compared as well; sending again is harmless. Raises as ``models`` does."""
        document = starts_request(starts, cluster)
        return parse_starts(await self._transport.send("POST", "/v1/runtime/starts", document, deadline_s))

    async def runtime_queues(self, *, deadline_s: float | None = None) -> QueuesResponse:
        """How answers about run times have held in each queue. Raises as ``models`` does."""
        return parse_queues(await self._transport.get("/v1/runtime/queues", deadline_s))

    async def tell_pairs(
        self,
        cluster: str,
        pairs: Sequence[MeasuredPair],
        topologies: Mapping[str, NodeTopology] | None = None,
        *,
        domains: Mapping[str, Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> PairsKept:
        """What pairs of a cluster's nodes were measured to reach, 500 at most. Sending again is harmless.

        ``topologies`` are those of nodes that the endpoint may not know, ``domains`` the network levels that nodes are
        in, outermost first. Raises as ``models`` does.
        """
        document = pairwise_request(cluster, pairs, topologies, domains)
        return parse_kept(await self._transport.send("POST", "/v1/bandwidth/pairs", document, deadline_s))

    async def pairs(self, cluster: str | None = None, *, deadline_s: float | None = None) -> PairsResponse:
        """The measured pairs of a cluster; without one the names of those there are. Raises as ``models`` does."""
        query = f"?{urlencode({'cluster': cluster})}" if cluster else ""
        return parse_pairwise(await self._transport.get(f"/v1/bandwidth/pairs{query}", deadline_s))

    async def jobs(self, job: str = "", *, deadline_s: float | None = None) -> CheckpointsResponse:
        """The jobs whose logs the endpoint follows, or one of them with its epochs. Raises as ``models`` does."""
        query = f"?{urlencode({'job': job})}" if job else ""
        return parse_jobs(await self._transport.get(f"/v1/checkpoint{query}", deadline_s))

    async def send_audit(self, records: Sequence[SealedRecord], *, deadline_s: float | None = None) -> AuditKept:
        """Records of the audit log, 500 at most. Sending again is harmless. Raises as ``models`` does."""
        document = audit_request(records)
        return parse_audit_kept(await self._transport.send("PUT", "/v1/audit", document, deadline_s))

    async def audit(self, query: AuditQuery, *, deadline_s: float | None = None) -> AuditResponse:
        """Records of the audit log, and what verifies them. Raises as ``models`` does."""
        return parse_audit(await self._transport.get(f"/v1/audit?{query.text()}", deadline_s))

    async def models(self, *, deadline_s: float | None = None) -> ModelsResponse:
        """Registered versions. Raises EndpointFailure, AnswerError or RequestRefused."""
        return parse_models(await self._transport.get("/v1/models", deadline_s))

    async def model_health(self, *, deadline_s: float | None = None) -> ModelHealthResponse:
        """Predicted against actual of champion and challenger. Raises as ``models`` does."""
        return parse_health(await self._transport.get("/v1/health/models", deadline_s))

    async def predictors_health(self, *, deadline_s: float | None = None) -> PredictorsHealthResponse:
        """Predicted against measured of sizes and bandwidths. Raises as ``models`` does."""
        return parse_predictors_health(await self._transport.get("/v1/health/predictors", deadline_s))

    async def recommendations(self, *, deadline_s: float | None = None) -> tuple[RecommendationOut, ...]:
        """Lending advice per pool. Raises as ``models`` does."""
        return parse_recommendations(await self._transport.get("/v1/recommendations", deadline_s)).recommendations

    async def sizes(self, *, deadline_s: float | None = None) -> tuple[SizeAdvice, ...]:
        """The newest size of every job type that was asked about. Raises as ``models`` does."""
        return parse_recommendations(await self._transport.get("/v1/recommendations", deadline_s)).size_advice

    async def ready(self, *, deadline_s: float | None = None) -> bool:
        """Whether the endpoint answers with a model; False too when it does not answer at all."""
        try:
            document = await self._transport.get("/readyz", deadline_s)
        except (EndpointFailure, RequestRefused):
            return False
        return document.get("status") == "ready"


def _raising(failure: EndpointFailure, at_s: float, clock: Callable[[], float]) -> Callable[[], None]:
    """Raises ``failure`` from a moment on."""

    def still() -> None:
        if clock() >= at_s:
            raise failure

    return still
