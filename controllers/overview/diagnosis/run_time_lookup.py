"""What predictions say about one reading of a cluster: run times, asked for once, and calibrated starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kopt.controllers.overview.diagnosis.answer import diagnose
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.questions import NoPredictions, Predictions, questions_of
from kopt.controllers.overview.diagnosis.starts import UNKNOWN, RunTimes
from kopt.controllers.overview.job import Finding, JobSnapshot
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import Diagnosis, PredictedStart, StartEstimate
from kopt.policies.diagnosis import RunTimeColumns


class RunTimeLookup:
    """Without ``predictions`` no start is predicted. What nobody answers is said in the start's reason."""

    def __init__(self, predictions: Predictions | None) -> None:
        self._predictions = predictions
        self._run_times: RunTimes | None = None
        self._unanswered: Reason | None = None

    async def diagnosed(
        self, job: JobSnapshot, books: ClusterBooks, findings: Sequence[Finding] = ()
    ) -> Diagnosis | None:
        """As ``diagnose``, with a start as the draws give it."""
        diagnosis = diagnose(job, books, findings, await self._run_times_of(books, job.now_s))
        if diagnosis is None or self._unanswered is None:
            return diagnosis
        # A start that cannot be known by run times either has a reason of its own.
        unknown = diagnosis.start.reason is not None and diagnosis.start.reason.code == UNKNOWN
        return replace(diagnosis, start=StartEstimate(reason=self._unanswered)) if unknown else diagnosis

    async def calibrated(self, diagnoses: Iterable[Diagnosis | None], now_s: float) -> Mapping[str, StartEstimate]:
        """By the uid of a diagnosis: its start as earlier ones of its queue came true, all asked about at once. Empty
        where nobody says."""
        starts = [
            PredictedStart(diagnosis.uid, diagnosis.queue, now_s, diagnosis.start)
            for diagnosis in diagnoses
            if diagnosis is not None and diagnosis.uid and diagnosis.start.p90_s is not None
        ]
        if not starts or self._predictions is None:
            return {}
        try:
            return await self._predictions.calibrated(starts)
        except NoPredictions:
            return {}

    async def _run_times_of(self, books: ClusterBooks, now_s: float) -> RunTimes | None:
        if self._run_times is None and self._predictions is not None:
            try:
                self._run_times = RunTimeColumns(await self._predictions.run_times(questions_of(books, now_s)))
            except NoPredictions as error:
                self._run_times, self._unanswered = {}, error.reason
        return self._run_times
