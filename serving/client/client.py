"""Clients of the prediction endpoint, on httpx alone (no Ray, no torch, no numpy).

Every call has a deadline. A demand forecast never fails because the platform is down: within the deadline it comes
from the endpoint or, marked ``fallback`` with the reason, from ``serving.client.fallback_demand`` on the history in
the query. Only a request that the endpoint refuses (RequestRefused) raises: trying again would not help.

    client = PredictionClient("http://127.0.0.1:8700")
    forecast = client.demand(DemandQuery([History("chat", t=times, value=requests)], capacity_per_gpu=600))
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import httpx
import tenacity

from kopt.core.audit import SealedRecord
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import PredictedStart
from kopt.core.workload.run_time import JobRun, RunTimeQuestion
from kopt.policies.lending.policy import LendingSettings
from kopt.serving.client.fallback_demand import FALLBACK_MODEL, REACTIVE_MARGIN, fallback_forecast, recent
from kopt.serving.client.gpus import gpus_prediction
from kopt.serving.client.resilience import CircuitBreaker, RetryBudget
from kopt.serving.client.tokens import TokenError, token_from
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
from kopt.serving.contract.common import DEADLINE_HEADER, GRID_S, AnswerError
from kopt.serving.contract.demand_answers import (
    DemandForecast,
    DemandQuery,
    History,
    HorizonForecast,
    SeriesForecast,
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

__all__ = ["AsyncPredictionClient", "DemandQuery", "EndpointFailure", "History", "PredictionClient", "RequestRefused"]

DEADLINE_S = 1.0
_SERVER_SHARE = 0.8
"""Share of the remaining time that the server is given, so that its own fallback still arrives in time."""
_LINKS_S = 0.5
"""Limit for the bandwidth fallback: sets without symmetry take milliseconds each."""
_LARGEST_ANSWER_BYTES = 64 << 20

T = TypeVar("T")


class RequestRefused(ValueError):
    """The endpoint refused the request (4xx); the message is the problem document's detail with the fields."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class EndpointFailure(RuntimeError):
    """No usable answer within the deadline; ``reason`` says why and ``retry_after_s`` when to try again."""

    def __init__(self, code: str, message: str, retry_after_s: float | None = None, *, retry: bool = True) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)
        self.retry_after_s, self.retry = retry_after_s, retry


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
        self._deadline_s, self._clock = deadline_s, clock
        self._token = token_from(os.environ) if token is None else token
        self._lending = lending or LendingSettings(reactive_margin=REACTIVE_MARGIN)
        self._breaker, self._budget = CircuitBreaker(clock, longest_s=longest_pause_s), RetryBudget()
        self.answered = self.failed = 0
        """Answers since the process began: usable ones, and errors, broken ones or those that were not in time. An
        endpoint that is not there, busy or still without a model has failed at no answer."""
        # No proxies from the environment: predictions do not leave the machine by accident.
        self._http = httpx.AsyncClient(base_url=url, transport=transport, trust_env=False, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
        """Forecasts within ``deadline_s``; the fallback, marked, when the endpoint cannot give them.

        Raises RequestRefused when the query itself is wrong.
        """
        content = json.dumps(query.to_dict(), separators=(",", ":")).encode()
        try:
            return parse_forecast(await self._call("POST", "/v1/demand", deadline_s, content))
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
        content = json.dumps({"t": list(t), "value": list(value)}, separators=(",", ":")).encode()
        return parse_pushed(await self._call("PUT", f"/v1/demand/{quote(service)}", deadline_s, content))

    async def ask(
        self, predictor: str, request: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Mapping[str, Any]:
        """The answer of ``/v1/PREDICTOR`` as it came, for any predictor. Raises EndpointFailure or RequestRefused."""
        content = json.dumps(request, separators=(",", ":")).encode()
        return await self._call("POST", f"/v1/{predictor}", deadline_s, content)

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

        content = json.dumps(query.to_dict(), separators=(",", ":")).encode()
        try:
            return parse_bandwidth(await self._call("POST", "/v1/bandwidth", deadline_s, content))
        except AnswerError as error:
            failure = EndpointFailure("ENDPOINT_ERROR", str(error))
        except EndpointFailure as error:
            failure = error
        try:
            return fallback_bandwidth(query, failure.reason, _raising(failure, self._clock() + _LINKS_S, self._clock))
        except WrongQuestion as error:
            raise RequestRefused(422, str(error)) from error

    async def runtime(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> RunTimeResponse:
        """How long a job will run. Raises as ``models`` does."""
        return parse_run_time(await self.ask("runtime", request, deadline_s=deadline_s))

    async def run_times(
        self, questions: Mapping[str, RunTimeQuestion], cluster: str = "", *, deadline_s: float | None = None
    ) -> RunTimesResponse:
        """What is left of many jobs, 2,000 at most, all asked at one time. Raises as ``models`` does."""
        content = json.dumps(run_times_request(questions, cluster), separators=(",", ":")).encode()
        return parse_run_times(await self._call("POST", "/v1/runtime/jobs", deadline_s, content))

    async def send_runs(
        self, runs: Sequence[JobRun], cluster: str = "", *, deadline_s: float | None = None
    ) -> RunsKept:
        """Jobs that started or ended, 5,000 at most. Sending again is harmless. Raises as ``models`` does."""
        content = json.dumps(runs_request(runs, cluster), separators=(",", ":")).encode()
        return parse_runs_kept(await self._call("POST", "/v1/runtime/runs", deadline_s, content))

    async def runs(self, cluster: str = "", after: int = 0, *, deadline_s: float | None = None) -> RunsResponse:
        """Runs that were sent, 5,000 at most, in the order in which they became known. Raises as ``models`` does."""
        query = urlencode({"cluster": cluster, "after": after})
        return parse_runs(await self._call("GET", f"/v1/runtime/runs?{query}", deadline_s))

    async def calibrated_starts(
        self, starts: Sequence[PredictedStart], cluster: str = "", *, deadline_s: float | None = None
    ) -> StartsResponse:
        """Predicted starts, 2,000 at most, each with a p50 and a p90, as earlier ones of their queues came true. They
        are kept to be compared as well; sending again is harmless. Raises as ``models`` does."""
        content = json.dumps(starts_request(starts, cluster), separators=(",", ":")).encode()
        return parse_starts(await self._call("POST", "/v1/runtime/starts", deadline_s, content))

    async def runtime_queues(self, *, deadline_s: float | None = None) -> QueuesResponse:
        """How answers about run times have held in each queue. Raises as ``models`` does."""
        return parse_queues(await self._call("GET", "/v1/runtime/queues", deadline_s))

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
        content = json.dumps(pairwise_request(cluster, pairs, topologies, domains), separators=(",", ":")).encode()
        return parse_kept(await self._call("POST", "/v1/bandwidth/pairs", deadline_s, content))

    async def pairs(self, cluster: str | None = None, *, deadline_s: float | None = None) -> PairsResponse:
        """The measured pairs of a cluster; without one the names of those there are. Raises as ``models`` does."""
        query = f"?{urlencode({'cluster': cluster})}" if cluster else ""
        return parse_pairwise(await self._call("GET", f"/v1/bandwidth/pairs{query}", deadline_s))

    async def jobs(self, *, deadline_s: float | None = None) -> CheckpointsResponse:
        """The jobs whose logs the endpoint follows. Raises as ``models`` does."""
        return parse_jobs(await self._call("GET", "/v1/checkpoint", deadline_s))

    async def send_audit(self, records: Sequence[SealedRecord], *, deadline_s: float | None = None) -> AuditKept:
        """Records of the audit log, 500 at most. Sending again is harmless. Raises as ``models`` does."""
        content = json.dumps(audit_request(records), separators=(",", ":")).encode()
        return parse_audit_kept(await self._call("PUT", "/v1/audit", deadline_s, content))

    async def audit(self, query: AuditQuery, *, deadline_s: float | None = None) -> AuditResponse:
        """Records of the audit log, and what verifies them. Raises as ``models`` does."""
        return parse_audit(await self._call("GET", f"/v1/audit?{query.text()}", deadline_s))

    async def models(self, *, deadline_s: float | None = None) -> ModelsResponse:
        """Registered versions. Raises EndpointFailure, AnswerError or RequestRefused."""
        return parse_models(await self._call("GET", "/v1/models", deadline_s))

    async def model_health(self, *, deadline_s: float | None = None) -> ModelHealthResponse:
        """Predicted against actual of champion and challenger. Raises as ``models`` does."""
        return parse_health(await self._call("GET", "/v1/health/models", deadline_s))

    async def predictors_health(self, *, deadline_s: float | None = None) -> PredictorsHealthResponse:
        """Predicted against measured of sizes and bandwidths. Raises as ``models`` does."""
        return parse_predictors_health(await self._call("GET", "/v1/health/predictors", deadline_s))

    async def recommendations(self, *, deadline_s: float | None = None) -> tuple[RecommendationOut, ...]:
        """Lending advice per pool. Raises as ``models`` does."""
        return parse_recommendations(await self._call("GET", "/v1/recommendations", deadline_s)).recommendations

    async def sizes(self, *, deadline_s: float | None = None) -> tuple[SizeAdvice, ...]:
        """The newest size of every job type that was asked about. Raises as ``models`` does."""
        return parse_recommendations(await self._call("GET", "/v1/recommendations", deadline_s)).size_advice

    async def ready(self, *, deadline_s: float | None = None) -> bool:
        """Whether the endpoint answers with a model; False too when it does not answer at all."""
        try:
            document = await self._call("GET", "/readyz", deadline_s)
        except (EndpointFailure, RequestRefused):
            return False
        return document.get("status") == "ready"

    async def _call(self, method: str, path: str, deadline_s: float | None, content: bytes = b"") -> dict[str, Any]:
        """The JSON document of an answer, tried again while deadline, budget and breaker allow."""
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        end_s = self._clock() + limit_s
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._may_retry),
            wait=_pause,
            stop=_stop_before(end_s, self._clock),
            reraise=True,
        )
        last: EndpointFailure | None = None

        async def once() -> dict[str, Any]:
            nonlocal last
            try:
                return await self._once(method, path, content, end_s)
            except EndpointFailure as failure:
                last = failure
                raise

        try:
            async with asyncio.timeout(max(limit_s, 0.0)):
                document: dict[str, Any] = await attempts(once)
                return document
        except TimeoutError:
            self._failed(answers=last is None or last.reason.code != "ENDPOINT_UNREACHABLE")
            raise last or EndpointFailure("DEADLINE", f"No answer within {limit_s * 1000:g} ms.") from None

    def _may_retry(self, error: BaseException) -> bool:
        return isinstance(error, EndpointFailure) and error.retry and self._budget.allows

    def _failed(self, *, answers: bool = True) -> None:
        self.failed += answers
        self._breaker.failed()
        self._budget.failed()

    async def _once(self, method: str, path: str, content: bytes, end_s: float) -> dict[str, Any]:
        if not self._breaker.allows():
            raise EndpointFailure("CIRCUIT_OPEN", "The endpoint failed repeatedly; it is left alone.", retry=False)
        remaining_s = max(end_s - self._clock(), 0.001)
        headers = {DEADLINE_HEADER: f"{remaining_s * 1000 * _SERVER_SHARE:.0f}", "content-type": "application/json"}
        headers |= self._authorization()
        try:
            reply = await self._http.request(method, path, content=content, headers=headers, timeout=remaining_s)
        except httpx.TimeoutException:
            # The whole remaining time was spent.
            self._failed()
            raise EndpointFailure("DEADLINE", f"No answer within {remaining_s * 1000:.0f} ms.", retry=False) from None
        except httpx.HTTPError as error:
            self._failed(answers=False)
            raise EndpointFailure("ENDPOINT_UNREACHABLE", f"No connection: {type(error).__name__}.") from error
        return self._read(reply)

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"authorization": f"Bearer {self._token()}"}
        except TokenError as error:
            raise EndpointFailure("NO_TOKEN", f"{error}.", retry=False) from None

    def _read(self, reply: httpx.Response) -> dict[str, Any]:
        status = reply.status_code
        is_problem = reply.headers.get("content-type", "").startswith("application/problem+json")
        if status == 429:
            # An overloaded endpoint is alive: no failure for the circuit breaker, but no quick retry either.
            self._budget.failed()
            raise EndpointFailure("OVERLOADED", "The endpoint is overloaded.", _retry_after_s(reply))
        if 400 <= status < 500 and is_problem:
            self._breaker.succeeded()
            raise RequestRefused(status, _detail(reply))
        if status == 503 and "json" in reply.headers.get("content-type", ""):
            # It is alive and reports that it has no model yet: no failure for the circuit breaker.
            self._breaker.succeeded()
            raise EndpointFailure("NOT_READY", _detail(reply), _retry_after_s(reply))
        if status != 200 or len(reply.content) > _LARGEST_ANSWER_BYTES:
            self._failed()
            raise EndpointFailure("ENDPOINT_ERROR", f"The endpoint answered with status {status}.")
        return self._document(reply)

    def _document(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            document = reply.json()
        except (ValueError, RecursionError) as error:
            self._failed()
            raise EndpointFailure("ENDPOINT_ERROR", "The endpoint's answer is not JSON.") from error
        if not isinstance(document, dict):
            raise AnswerError("the endpoint's answer is not an object")
        self._breaker.succeeded()
        self._budget.succeeded()
        self.answered += 1
        return document


class PredictionClient:
    """The synchronous client: calls run on one background thread, so that deadlines hold even while it blocks.

    Thread-safe. Not to be used across ``os.fork``. Takes the arguments of AsyncPredictionClient.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kopt-client", daemon=True)
        self._thread.start()
        self._client = AsyncPredictionClient(url, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def demand(self, query: DemandQuery, *, deadline_s: float | None = None) -> DemandForecast:
        """See AsyncPredictionClient.demand."""
        return self._run(self._client.demand(query, deadline_s=deadline_s))

    def send_audit(self, records: Sequence[SealedRecord], *, deadline_s: float | None = None) -> AuditKept:
        """See AsyncPredictionClient.send_audit."""
        return self._run(self._client.send_audit(records, deadline_s=deadline_s))

    def audit(self, query: AuditQuery, *, deadline_s: float | None = None) -> AuditResponse:
        """See AsyncPredictionClient.audit."""
        return self._run(self._client.audit(query, deadline_s=deadline_s))

    def push_demand(
        self, service: str, t: Sequence[float], value: Sequence[float | None], *, deadline_s: float | None = None
    ) -> PushedDemand:
        """See AsyncPredictionClient.push_demand."""
        return self._run(self._client.push_demand(service, t, value, deadline_s=deadline_s))

    def ask(self, predictor: str, request: Mapping[str, Any], *, deadline_s: float | None = None) -> Mapping[str, Any]:
        """See AsyncPredictionClient.ask."""
        return self._run(self._client.ask(predictor, request, deadline_s=deadline_s))

    def sizing(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> Mapping[str, Any]:
        """See AsyncPredictionClient.sizing."""
        return self._run(self._client.sizing(request, deadline_s=deadline_s))

    def checkpoint(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> Mapping[str, Any]:
        """See AsyncPredictionClient.checkpoint."""
        return self._run(self._client.checkpoint(request, deadline_s=deadline_s))

    def bandwidth(self, query: BandwidthQuery, *, deadline_s: float | None = None) -> BandwidthResponse:
        """See AsyncPredictionClient.bandwidth."""
        return self._run(self._client.bandwidth(query, deadline_s=deadline_s))

    def runtime(self, request: Mapping[str, Any], *, deadline_s: float | None = None) -> RunTimeResponse:
        """See AsyncPredictionClient.runtime."""
        return self._run(self._client.runtime(request, deadline_s=deadline_s))

    def run_times(
        self, questions: Mapping[str, RunTimeQuestion], cluster: str = "", *, deadline_s: float | None = None
    ) -> RunTimesResponse:
        """See AsyncPredictionClient.run_times."""
        return self._run(self._client.run_times(questions, cluster, deadline_s=deadline_s))

    def send_runs(self, runs: Sequence[JobRun], cluster: str = "", *, deadline_s: float | None = None) -> RunsKept:
        """See AsyncPredictionClient.send_runs."""
        return self._run(self._client.send_runs(runs, cluster, deadline_s=deadline_s))

    def runs(self, cluster: str = "", after: int = 0, *, deadline_s: float | None = None) -> RunsResponse:
        """See AsyncPredictionClient.runs."""
        return self._run(self._client.runs(cluster, after, deadline_s=deadline_s))

    def calibrated_starts(
        self, starts: Sequence[PredictedStart], cluster: str = "", *, deadline_s: float | None = None
    ) -> StartsResponse:
        """See AsyncPredictionClient.calibrated_starts."""
        return self._run(self._client.calibrated_starts(starts, cluster, deadline_s=deadline_s))

    def runtime_queues(self, *, deadline_s: float | None = None) -> QueuesResponse:
        """See AsyncPredictionClient.runtime_queues."""
        return self._run(self._client.runtime_queues(deadline_s=deadline_s))

    def tell_pairs(
        self,
        cluster: str,
        pairs: Sequence[MeasuredPair],
        topologies: Mapping[str, NodeTopology] | None = None,
        *,
        domains: Mapping[str, Sequence[str]] | None = None,
        deadline_s: float | None = None,
    ) -> PairsKept:
        """See AsyncPredictionClient.tell_pairs."""
        return self._run(self._client.tell_pairs(cluster, pairs, topologies, domains=domains, deadline_s=deadline_s))

    def pairs(self, cluster: str | None = None, *, deadline_s: float | None = None) -> PairsResponse:
        """See AsyncPredictionClient.pairs."""
        return self._run(self._client.pairs(cluster, deadline_s=deadline_s))

    def jobs(self, *, deadline_s: float | None = None) -> CheckpointsResponse:
        """See AsyncPredictionClient.jobs."""
        return self._run(self._client.jobs(deadline_s=deadline_s))

    def sizes(self, *, deadline_s: float | None = None) -> tuple[SizeAdvice, ...]:
        """See AsyncPredictionClient.sizes."""
        return self._run(self._client.sizes(deadline_s=deadline_s))

    def models(self, *, deadline_s: float | None = None) -> ModelsResponse:
        """See AsyncPredictionClient.models."""
        return self._run(self._client.models(deadline_s=deadline_s))

    def model_health(self, *, deadline_s: float | None = None) -> ModelHealthResponse:
        """See AsyncPredictionClient.model_health."""
        return self._run(self._client.model_health(deadline_s=deadline_s))

    def predictors_health(self, *, deadline_s: float | None = None) -> PredictorsHealthResponse:
        """See AsyncPredictionClient.predictors_health."""
        return self._run(self._client.predictors_health(deadline_s=deadline_s))

    def recommendations(self, *, deadline_s: float | None = None) -> tuple[RecommendationOut, ...]:
        """See AsyncPredictionClient.recommendations."""
        return self._run(self._client.recommendations(deadline_s=deadline_s))

    def ready(self, *, deadline_s: float | None = None) -> bool:
        """See AsyncPredictionClient.ready."""
        return self._run(self._client.ready(deadline_s=deadline_s))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _raising(failure: EndpointFailure, at_s: float, clock: Callable[[], float]) -> Callable[[], None]:
    """Raises ``failure`` from a moment on."""

    def still() -> None:
        if clock() >= at_s:
            raise failure

    return still


def fallback_answer(query: DemandQuery, why: Reason, lending: LendingSettings) -> DemandForecast:
    """The query answered from its own histories alone, every prediction marked as fallback."""
    return DemandForecast(
        tuple(_fallback_series(query, history, why, lending) for history in query.series), FALLBACK_MODEL
    )


def _fallback_series(query: DemandQuery, history: History, why: Reason, lending: LendingSettings) -> SeriesForecast:
    recent_demand = recent(history.t, history.value)
    bucket_s = GRID_S if recent_demand is None else recent_demand.bucket_s
    predictions = fallback_forecast(recent_demand, query.horizons_s, query.quantiles, query.unit, why)
    recent_max = None if recent_demand is None else recent_demand.half_hour_max
    capacity = query.capacity_per_gpu
    if capacity is not None and recent_demand is not None:
        capacity *= recent_demand.bucket_s / recent_demand.step_s
    horizons = tuple(
        HorizonForecast(
            horizon_s,
            demand,
            None if capacity is None else gpus_prediction(demand, capacity, recent_max, lending),
        )
        for horizon_s, demand in zip(query.horizons_s, predictions, strict=True)
    )
    return SeriesForecast(history.name, query.unit, bucket_s, horizons)


def _pause(state: tenacity.RetryCallState) -> float:
    """Full jitter from 10 ms on, or what the endpoint asked for."""
    failure = state.outcome.exception() if state.outcome is not None else None
    retry_after_s = failure.retry_after_s if isinstance(failure, EndpointFailure) else None
    return (
        retry_after_s if retry_after_s is not None else float(tenacity.wait_random_exponential(0.02, 0.5)(state)) + 0.01
    )


def _stop_before(end_s: float, clock: Callable[[], float]) -> Callable[[tenacity.RetryCallState], bool]:
    """Stop when the next attempt could not start before the deadline."""
    return lambda state: clock() + (state.upcoming_sleep or 0.0) >= end_s


def _retry_after_s(reply: httpx.Response) -> float | None:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _detail(reply: httpx.Response) -> str:
    try:
        problem = reply.json()
        fields = "; ".join(f"{error['field']}: {error['message']}" for error in problem.get("errors", [])[:5])
        return f"{problem['detail']}" + (f" ({fields})" if fields else "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply.text[:200]
