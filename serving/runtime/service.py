"""A question about a run time becomes quantiles: the model, the cluster's runs, the deadline. Behind ``/v1/runtime``.

One thread per replica reads runs and answers, as a cluster's history is fed in order. Runs are accepted once they are
in the table; every replica reads there what is new before it answers.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import PredictedStart, StartEstimate
from kopt.core.workload.run_time import (
    LEVELS,
    JobKind,
    JobRun,
    RunTimeError,
    RunTimeQuestion,
    StepProgress,
)
from kopt.features.job_history import FEATURES
from kopt.features.run_rows import Cluster, RunRows, keys_of_all
from kopt.models.registry.aliases import CHALLENGER, CHAMPION, SHIPPED
from kopt.models.registry.loading import load_predictor
from kopt.models.runtime.cluster_runs import ClusterRuns, Outcome
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.predictor import (
    PROBABILITY,
    RunTimePredictor,
    RunTimeRequest,
    answer_recent,
)
from kopt.models.runtime.records import QueueRecord
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.model_slot import ModelSource, Slot
from kopt.serving.base.owners import owner_of
from kopt.serving.base.service import Compared, PredictorService
from kopt.serving.contract.common import ModelOut
from kopt.serving.contract.runtime_answers import (
    JobTimeOut,
    QueueOut,
    QueuesResponse,
    RunOut,
    RunsKept,
    RunsResponse,
    RunTimeResponse,
    RunTimesResponse,
    SecondsOut,
    StartOut,
    StartsResponse,
)
from kopt.serving.contract.runtime_schemas import (
    MAX_RUNS,
    AskedJobIn,
    ProgressIn,
    RunIn,
    RunsRequest,
    RunTimeRequestIn,
    RunTimesRequest,
    StartsRequest,
)
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem, invalid
from kopt.serving.http.sharing import Shares
from kopt.serving.measured.comparisons import Comparisons, Interval, SeveralComparisons
from kopt.serving.runtime.followed import Changed, FollowedClusters
from kopt.serving.runtime.metrics import RunTimeMetrics
from kopt.serving.runtime.starts import StartTable
from kopt.serving.runtime.stored import RunFeatures
from kopt.serving.runtime.table import RunTable

_LOG = logging.getLogger(__name__)
STARTS = "start"
"""The name under which predicted starts are compared."""
MAX_QUEUED = 128
_SHORTEST_S, _BY_P90 = 1.0, 0.9
_LIVE = 100
T = TypeVar("T")


def runtime_slot(source: ModelSource, default: Callable[[], RunTimePredictor] | None = None) -> Slot[RunTimePredictor]:
    """The registry's champion; the shipped model, verified, while there is none."""
    return Slot(source, "runtime", CHAMPION, warm_up=_warm_up, default=default or _shipped)


def challenger_slot(source: ModelSource) -> Slot[RunTimePredictor]:
    """The version on trial: it answers only the share of questions that was signed for it, and is compared."""
    return Slot(source, "runtime", CHALLENGER, warm_up=_warm_up)


def _shipped() -> RunTimePredictor:
    predictor = load_predictor("runtime", SHIPPED)
    assert isinstance(predictor, RunTimePredictor)
    return predictor


def _warm_up(model: RunTimePredictor) -> None:
    """One row, so that a model that cannot answer never serves. Raises ValueError."""
    if not np.isfinite(model.trees.predict(np.zeros((1, len(FEATURES))))).all():
        raise ValueError("its answer is no run time")


@dataclass(frozen=True)
class _Scope:
    """By whom, and about which cluster."""

    cluster: str
    caller: str
    sees_all: bool


class RunTimeService(PredictorService[RunTimePredictor]):
    """Answers with the model in ``slot``. One per replica; ``clock`` tells Unix time."""

    def __init__(
        self,
        slot: Slot[RunTimePredictor],
        metrics: EndpointMetrics,
        table: RunTable,
        start_table: StartTable,
        *,
        challenger: Slot[RunTimePredictor] | None = None,
        comparisons: Comparisons | None = None,
        start_comparisons: Comparisons | None = None,
        features: RunFeatures | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._features = features
        self._counters = RunTimeMetrics(metrics)
        super().__init__(slot, metrics, self._counters, challenger)
        self._table, self._comparisons, self._clock = table, comparisons, clock
        self._start_table, self._start_comparisons = start_table, start_comparisons
        self._followed = FollowedClusters(table)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runtime")
        self._queued = Shares(MAX_QUEUED)

    @property
    def compared(self) -> Compared | None:
        kept = [each for each in (self._comparisons, self._start_comparisons) if each is not None]
        return SeveralComparisons(kept) if kept else None

    def start(self) -> None:
        super().start()
        if self._features is not None:
            self._features.start()

    def close(self) -> None:
        """Finishes queued requests."""
        self._thread.shutdown(wait=True)
        if self._features is not None:
            self._features.stop()
        self._table.close()
        self._start_table.close()
        super().close()

    async def answer(
        self, request: RunTimeRequestIn, deadline: Deadline, caller: str = "", *, sees_all: bool = True
    ) -> RunTimeResponse:
        """The model's answer within the deadline, from the caller's runs of the cluster; with ``sees_all``, where it
        has sent none, from those of whoever has. Raises Problem: 422 for a wrong question, 429 and 503 where it cannot
        be answered now."""
        model = self.model_for(lambda: f"{caller}/{request.cluster}/{request.queue}/{request.name}/{request.job}")
        if model is None:
            why = self.slot.error or Reason("NO_MODEL", "No run-time model is loaded yet.")
            raise Problem(503, why.message, headers={"retry-after": "5"})
        question = _question(request, self._clock())
        made = await self._in_time(model, _Scope(request.cluster, caller, sees_all), question, deadline)
        self._counters.answered(made)
        return made

    async def answers(
        self, request: RunTimesRequest, deadline: Deadline, caller: str = "", *, sees_all: bool = True
    ) -> RunTimesResponse:
        """The champion's answers about many jobs. Raises Problem as ``answer`` does."""
        if self.slot.current is None:
            why = self.slot.error or Reason("NO_MODEL", "No run-time model is loaded yet.")
            raise Problem(503, why.message, headers={"retry-after": "5"})
        at_s = self._clock() if request.at_s is None else request.at_s
        questions = [_question_of(at, job, at_s) for at, job in enumerate(request.jobs)]
        scope = _Scope(request.cluster, caller, sees_all)
        return await self._on_thread(caller, deadline, self._by_champion, request, scope, questions, at_s)

    def _by_champion(
        self, request: RunTimesRequest, scope: _Scope, questions: Sequence[RunTimeQuestion], at_s: float
    ) -> RunTimesResponse:
        runs = self._current(self._owner(scope), scope.cluster)[CHAMPION]
        model = self.models[CHAMPION]
        # What waits in one queue with the same size is asked about once.
        answers = dict(zip(several := list(dict.fromkeys(questions)), model.remaining(several, runs), strict=True))
        jobs = []
        for job, question in zip(request.jobs, questions, strict=True):
            answer = answers[question]
            jobs.append(JobTimeOut(job.id, SecondsOut.of(answer.seconds), answer.level, answer.finished))
        return RunTimesResponse(jobs=tuple(jobs), at_s=at_s, model=ModelOut.of(model.version))

    async def _in_time(
        self, model: RunTimePredictor, scope: _Scope, question: RunTimeQuestion, deadline: Deadline
    ) -> RunTimeResponse:
        caller = scope.caller
        try:
            made = await self._on_thread(caller, deadline, self._by_model, model, scope, question)
        except Problem:
            raise
        except Exception as error:  # noqa: BLE001 - edge: a model's bug must not become the caller's outage
            _LOG.exception("a run time cannot be answered")
            if self.canary.failed(model) and self.slot.current is not None:
                return await self._in_time(self.slot.current, scope, question, deadline)
            text = f"The model failed ({type(error).__name__}); this is what the last runs alone say."
            why = Reason("MODEL_ERROR", text)
            return await self._on_thread(caller, deadline, self._by_recent, model, scope, question, why)
        self.canary.answered(model)
        return made

    async def keep(self, request: RunsRequest, deadline: Deadline, caller: str = "") -> RunsKept:
        """Keep starts and ends of runs. Raises Problem 422, 429, 503."""
        runs = [_run(at, run) for at, run in enumerate(request.runs)]
        return await self._on_thread(caller, deadline, self._keep, request.cluster, runs, caller)

    async def starts(
        self, request: StartsRequest, deadline: Deadline, caller: str = "", *, sees_all: bool = True
    ) -> StartsResponse:
        """Predicted starts as those before came true, by the caller's runs of the cluster or, with ``sees_all``, by
        those of whoever has sent them. Raises Problem 422, 429, 503."""
        for number, start in enumerate(request.starts):
            if start.p90_s < start.p50_s:
                raise invalid(f"starts.{number}.p90_s", "nine of ten draws take no less than half of them")
        scope = _Scope(request.cluster, caller, sees_all)
        return await self._on_thread(caller, deadline, self._starts, request, scope)

    async def runs(
        self, cluster: str, after: int, deadline: Deadline, caller: str = "", *, sees_all: bool = True
    ) -> RunsResponse:
        """The runs of a cluster that became known after a change, by whose runs answers go. Raises Problem 429, 503."""
        scope = _Scope(cluster, caller, sees_all)
        return await self._on_thread(caller, deadline, self._runs, scope, after)

    async def queues(self, deadline: Deadline, owner: str | None) -> QueuesResponse:
        """How answers have held, by cluster and queue, of one caller or of all (None). Raises Problem 503."""
        return await self._on_thread(owner or "", deadline, self._queues, owner)

    async def _on_thread(self, caller: str, deadline: Deadline, work: Callable[..., T], *args: Any) -> T:
        if self._queued.total >= MAX_QUEUED or not self._queued.acquire(caller):
            text = f"{self._queued.total} requests wait to be read already; try again in a second."
            raise Problem(429, text, headers={"retry-after": "1"})
        running = asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        running.add_done_callback(functools.partial(self._done, caller))
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                return await asyncio.shield(running)
        except TimeoutError:
            text = f"{deadline.reason.message} Ask again: a cluster's runs are read once after a start."
            raise Problem(503, text, headers={"retry-after": "1"}) from None
        except DatabaseError as error:
            text = f"The runs that are known cannot be reached: {error}. Try again."
            raise Problem(503, text, headers={"retry-after": "2"}) from error

    def _done(self, caller: str, running: "asyncio.Future[Any]") -> None:
        self._queued.release(caller)
        if not running.cancelled() and (error := running.exception()) is not None:
            _LOG.debug("a question about run times ended with %r", error)

    def _keep(self, cluster: str, runs: Sequence[JobRun], caller: str) -> RunsKept:
        owner = owner_of(caller)
        kept = self._table.keep(owner, cluster, runs, self._clock())
        self._counters.runs.inc(kept)
        self._compare_starts(owner, cluster, runs)
        if 0 < kept <= _LIVE:
            # What happens now is answered and compared as it happens; tables of the past wait for a question.
            self._current(owner, cluster)
        return RunsKept(kept=kept, known=len(runs) - kept)

    def _runs(self, scope: _Scope, after: int) -> RunsResponse:
        page = self._table.page(self._owner(scope), scope.cluster, after, MAX_RUNS)
        return RunsResponse(runs=tuple(map(RunOut.of, page.runs)), last=page.last)

    def _starts(self, request: StartsRequest, scope: _Scope) -> StartsResponse:
        owner = self._owner(scope)
        starts = [
            PredictedStart(start.job, start.queue, start.at_s, StartEstimate(start.p50_s, start.p90_s))
            for start in request.starts
        ]
        by_queue = {
            queue: self._start_table.calibration(owner, scope.cluster, queue)
            for queue in {start.queue for start in starts}
        }
        answered = {start.job: by_queue[start.queue].corrected(start.estimate) for start in starts}
        self._start_table.keep(owner, scope.cluster, starts, answered, self._clock())
        listed = tuple(
            StartOut(start.job, corrected.p50_s or 0.0, corrected.p90_s or 0.0, len(by_queue[start.queue].p90_logs))
            for start in starts
            if (corrected := answered[start.job])
        )
        return StartsResponse(starts=listed)

    def _compare_starts(self, owner: str, cluster: str, runs: Sequence[JobRun]) -> None:
        begun = self._start_table.begun(owner, cluster, runs, self._clock())
        model = self.slot.current
        if self._start_comparisons is None or model is None:
            return
        for wait in begun:
            # A start has no lower bound: half come sooner than p50.
            p50_s = max(_SHORTEST_S, wait.p50_s)
            interval = Interval(model.version, p50_s, _SHORTEST_S, max(p50_s, wait.p90_s), _BY_P90)
            subject = f"{cluster}/{wait.job}" if cluster else wait.job
            self._start_comparisons.record(owner, subject, "s", max(_SHORTEST_S, wait.wait_s), {CHAMPION: interval})

    def _current(self, owner: str, cluster: str) -> Mapping[str, ClusterRuns]:
        """The cluster's runs by alias, up to date; ends that are new are compared with what was answered."""
        if not self.models:
            return {}

        def ended(alias: str, model: RunTimePredictor, outcome: Outcome) -> None:
            if self._comparisons is not None:
                subject = f"{cluster}/{outcome.run.job}" if cluster else outcome.run.job
                answers = {alias: _interval(model.version, outcome)}
                self._comparisons.record(owner, subject, "s", float(np.exp(outcome.log_seconds)), answers)

        def changed(news: Changed) -> None:
            if self._features is not None:
                _store(self._features, Cluster(owner, cluster), self.models, news)

        return self._followed.catch_up(owner, cluster, self.models, ended, changed)

    def _by_model(self, model: RunTimePredictor, scope: _Scope, question: RunTimeQuestion) -> RunTimeResponse:
        models = self.models
        alias = next((alias for alias, each in models.items() if each is model), None)
        if alias is None:
            alias, model = next(iter(models.items()))
        owner = self._owner(scope)
        stored = self._by_stored(model, owner, scope.cluster, question)
        if stored is not None:
            return stored
        runs = self._current(owner, scope.cluster)[alias]
        self._counters.drifted(sum(record.has_drifted for record in runs.queues.values()))
        return RunTimeResponse.of(model.answer(RunTimeRequest(question, runs)), question.at_s, model.version)

    def _by_stored(
        self, model: RunTimePredictor, owner: str, cluster: str, question: RunTimeQuestion
    ) -> RunTimeResponse | None:
        """From the feature store, where the question names only the kind of the job and the cluster's runs are not at
        hand: after a start, and of clusters that are rarely asked about, reading them takes seconds."""
        if self._features is None or question.started_s is not None or question.progress is not None:
            return None
        if self._followed.has(owner, cluster, model.version):
            return None
        rows = self._features.online(Cluster(owner, cluster), question.kind, model.stored_as)
        change = self._table.last_change(owner, cluster)
        if rows is None or not change or not rows.is_usable(change):
            return None
        answer = model.answer(RunTimeRequest(question, model.stored_runs(rows)))
        why = rows.problem(change, question.at_s) or Reason("STORED_FEATURES", "From the feature store's newest rows.")
        first, *others = answer.reasons
        answer = replace(answer, reasons=(first, why, *others))
        return RunTimeResponse.of(answer, question.at_s, model.version)

    def _by_recent(
        self, model: RunTimePredictor, scope: _Scope, question: RunTimeQuestion, why: Reason
    ) -> RunTimeResponse:
        history = self._followed.history(self._owner(scope), scope.cluster)
        return RunTimeResponse.of(answer_recent(history, question, why), question.at_s, model.version)

    def _owner(self, scope: _Scope) -> str:
        """Whose runs of the cluster count."""
        own = owner_of(scope.caller)
        if not scope.sees_all or self._followed.knows(own, scope.cluster):
            return own
        if self._table.last_change(own, scope.cluster):
            return own
        others = [owner for owner, cluster in self._table.clusters(None) if cluster == scope.cluster]
        return others[0] if others else own

    def _queues(self, owner: str | None) -> QueuesResponse:
        key = None if owner is None else owner_of(owner)
        result = []
        for of, cluster in self._table.clusters(key):
            runs = self._current(of, cluster).get(CHAMPION)
            starts = self._start_table.coverage(of, cluster)
            records = runs.queues if runs is not None else {}
            for name in sorted(records.keys() | starts.keys()):
                record, (begun, by_p90) = records.get(name, QueueRecord()), starts.get(name, (0, None))
                running = runs.history.running_in(name) if runs is not None else 0
                compared = len(record.losses)
                result.append(
                    QueueOut(
                        cluster,
                        name,
                        running,
                        compared,
                        record.coverage,
                        record.loss_ratio,
                        record.has_drifted,
                        begun,
                        by_p90,
                    )
                )
        return QueuesResponse(queues=tuple(result))


def _store(features: RunFeatures, cluster: Cluster, models: Mapping[str, RunTimePredictor], news: Changed) -> None:
    kinds = None if news.is_whole else {run.kind for run in news.runs}
    history = next(iter(news.by_alias.values())).history
    calibrations = {
        (models[alias].stored_as, key): each
        for alias, runs in news.by_alias.items()
        for key, each in runs.calibrations(kinds).items()
    }
    groups = history.states(None if kinds is None else keys_of_all(kinds))
    rows = RunRows(cluster, news.newest_s, news.last, groups, calibrations)
    if news.is_whole:
        features.put_whole(rows, news.runs)
    else:
        features.put(rows)


def _question(request: RunTimeRequestIn, now_s: float) -> RunTimeQuestion:
    at_s = now_s if request.at_s is None else request.at_s
    try:
        kind = JobKind(request.queue, request.gpus, request.name, request.user)
        return RunTimeQuestion(kind, at_s, request.started_s, _step_progress(request.progress), request.job)
    except RunTimeError as error:
        raise invalid("progress" if "step" in str(error) else "started_s", str(error)) from None


def _question_of(at: int, job: AskedJobIn, at_s: float) -> RunTimeQuestion:
    try:
        kind = JobKind(job.queue, job.gpus, job.name, job.user)
        of_run = job.job if job.started_s is not None else ""
        return RunTimeQuestion(kind, at_s, job.started_s, _step_progress(job.progress), of_run)
    except RunTimeError as error:
        raise invalid(f"jobs.{at}.{'progress' if 'step' in str(error) else 'started_s'}", str(error)) from None


def _step_progress(item: ProgressIn | None) -> StepProgress | None:
    return None if item is None else StepProgress(item.step, item.steps, item.at_s, tuple(item.step_seconds))


def _run(at: int, run: RunIn) -> JobRun:
    try:
        kind = JobKind(run.queue, run.gpus, run.name, run.user)
        return JobRun(run.job, kind, run.started_s, run.ended_s, run.interrupted, run.submitted_s, run.pool)
    except RunTimeError as error:
        field = "submitted_s" if "submitted" in str(error) else "ended_s"
        raise invalid(f"runs.{at}.{field}", str(error)) from None


def _interval(version: ModelVersion, outcome: Outcome) -> Interval:
    log_times = LogTimes(tuple(outcome.answered))
    low, middle, high = (float(np.exp(log_times.quantile(level))) for level in (LEVELS[0], 0.5, LEVELS[-1]))
    return Interval(version, middle, low, high, PROBABILITY)
