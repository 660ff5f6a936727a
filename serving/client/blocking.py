"""The client of the prediction endpoint for programs without an event loop.

client = PredictionClient("http://127.0.0.1:8700")
forecast = client.demand(DemandQuery([History("chat", t=times, value=requests)], capacity_per_gpu=600))
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from kopt.core.audit import SealedRecord
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import MeasuredPair
from kopt.core.scheduling.diagnosis import PredictedStart
from kopt.core.workload.run_time import JobRun, RunTimeQuestion
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.audit_answers import (
    AuditKept,
    AuditQuery,
    AuditResponse,
)
from kopt.serving.contract.bandwidth.answers import BandwidthQuery, BandwidthResponse
from kopt.serving.contract.bandwidth.pairwise_answers import (
    PairsKept,
    PairsResponse,
)
from kopt.serving.contract.checkpoint_answers import CheckpointsResponse
from kopt.serving.contract.demand_answers import (
    DemandForecast,
    DemandQuery,
)
from kopt.serving.contract.live_answers import PushedDemand
from kopt.serving.contract.model_answers import (
    ModelHealthResponse,
    ModelsResponse,
    PredictorsHealthResponse,
)
from kopt.serving.contract.recommendation_answers import RecommendationOut
from kopt.serving.contract.runtime_answers import (
    QueuesResponse,
    RunsKept,
    RunsResponse,
    RunTimeResponse,
    RunTimesResponse,
    StartsResponse,
)
from kopt.serving.contract.size_advice import SizeAdvice

T = TypeVar("T")


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

    def jobs(self, job: str = "", *, deadline_s: float | None = None) -> CheckpointsResponse:
        """See AsyncPredictionClient.jobs."""
        return self._run(self._client.jobs(job, deadline_s=deadline_s))

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
