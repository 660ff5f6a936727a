"""Run times and starts, as the prediction endpoint knows them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from kopt.controllers.overview.diagnosis.questions import NoPredictions
from kopt.controllers.overview.diagnosis.starts import RunTimes
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import PredictedStart, StartEstimate
from kopt.core.workload.run_time import RunTimeQuestion

if TYPE_CHECKING:
    from kopt.serving.client.client import AsyncPredictionClient

DEADLINE_S = 5.0
"""How long an answer is waited for."""


class EndpointPredictions:
    """Asks the endpoint at ``url``, as whoever the environment's token names; ``cluster`` is this one's name there."""

    def __init__(self, url: str, cluster: str = "", deadline_s: float = DEADLINE_S) -> None:
        self._url, self._cluster, self._deadline_s = url, cluster, deadline_s

    async def run_times(self, questions: Mapping[str, RunTimeQuestion]) -> RunTimes:
        """As ``Predictions`` has it."""
        from kopt.serving.client.run_times import remaining_run_times

        async with self._client() as client:
            return await remaining_run_times(client, questions, self._cluster)

    async def calibrated(self, starts: Sequence[PredictedStart]) -> Mapping[str, StartEstimate]:
        """As ``Predictions`` has it."""
        from kopt.serving.contract.runtime_answers import MAX_JOBS

        estimates = {start.job: start.estimate for start in starts}
        result: dict[str, StartEstimate] = {}
        async with self._client() as client:
            for first in range(0, len(starts), MAX_JOBS):
                part = starts[first : first + MAX_JOBS]
                for start in (await client.calibrated_starts(part, self._cluster)).starts:
                    if start.job in estimates:
                        result[start.job] = replace(estimates[start.job], p50_s=start.p50_s, p90_s=start.p90_s)
        return result

    @asynccontextmanager
    async def _client(self) -> AsyncIterator["AsyncPredictionClient"]:
        # Not before it is needed: every `kopt` that reads a cluster imports this package.
        from kopt.serving.client.client import AsyncPredictionClient
        from kopt.serving.client.transport import EndpointFailure, RequestRefused
        from kopt.serving.contract.common import AnswerError

        try:
            async with AsyncPredictionClient(self._url, deadline_s=self._deadline_s) as client:
                yield client
        except (EndpointFailure, RequestRefused, AnswerError) as error:
            text = (
                f"The prediction endpoint {self._url} gives no run times ({str(error).rstrip('.')}): start it, or name "
                "another in KOPT_URL."
            )
            raise NoPredictions(Reason("RUN_TIMES_UNANSWERED", text)) from error
