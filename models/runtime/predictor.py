"""The run-time predictor: how long a job will run, before it starts and while it runs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import format_span
from kopt.core.workload.run_time import LEVELS, RunTimeAnswer, RunTimeQuestion
from kopt.features.job_history import FEATURES, RECENT, Array, Described, EndedRuns, JobHistory
from kopt.features.run_rows import OnlineRuns
from kopt.models.base import Predictor
from kopt.models.registry.model_files import read_json
from kopt.models.runtime.cluster_runs import ClusterRuns, StoredRuns
from kopt.models.runtime.distribution import LogTimes
from kopt.models.runtime.quantile_trees import QuantileTrees, TreeSettings
from kopt.models.runtime.recent import recent_quantiles
from kopt.models.runtime.records import QueueRecord
from kopt.models.runtime.steps import remaining_seconds
from kopt.models.runtime.still_running import remaining_while_running
from kopt.models.runtime.table import RunTimeTable

UNREGISTERED = ModelVersion("runtime", "unregistered")
PROBABILITY = LEVELS[-1] - LEVELS[0]
_DOCUMENT = "runtime.json"
_VERSION = 1
_LEVEL_LABELS = {
    "name": "jobs of this name, user and size",
    "class": "jobs of this queue and number of GPUs",
    "queue": "jobs of this queue",
    "gpus": "jobs on as many GPUs, of any queue",
    "all": "jobs of the whole cluster",
}


@dataclass(frozen=True)
class RunTimeRequest:
    """A question, and the runs of the cluster that it is about."""

    question: RunTimeQuestion
    runs: ClusterRuns | StoredRuns = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Quantiles at ``LEVELS`` of what is left of a job, in seconds, None where nothing is known; whose last runs it is
    relative to, and how many of them had ended."""

    seconds: tuple[float, ...] | None
    level: str
    finished: int


class RunTimePredictor(Predictor):
    """``fit`` takes the runs of several clusters; ``cluster_runs`` begins what is kept of another."""

    name: ClassVar[str] = "runtime"

    def __init__(self, settings: TreeSettings | None = None, threads: int = 1) -> None:
        self.settings = settings or TreeSettings()
        self.threads = threads
        self.version = UNREGISTERED
        self._trees: QuantileTrees | None = None

    def fit(self, table: RunTimeTable) -> Self:
        """Raises ValueError on a table with too few runs that ended."""
        self._trees = QuantileTrees.fit(table, self.settings, self.threads)
        return self

    @property
    def trees(self) -> QuantileTrees:
        """Raises ValueError before ``fit`` and ``load``."""
        if self._trees is None:
            raise ValueError("the run-time predictor has not been fitted; call fit or load first")
        return self._trees

    def cluster_runs(self) -> ClusterRuns:
        """For the runs of one cluster, in the order in which they became known."""
        return ClusterRuns(self.trees)

    @property
    def stored_as(self) -> str:
        """By what the feature store tells the calibrations of versions apart."""
        return f"{self.version.version} {self.version.digest}"

    def stored_runs(self, rows: OnlineRuns) -> StoredRuns:
        """What the feature store has of a cluster's runs, to be asked about; ``rows`` of this version of the model."""
        held = {key: each for (version, key), each in rows.calibrations.items() if version == self.stored_as}
        return StoredRuns(self.trees, rows.groups, held)

    def answer(self, request: RunTimeRequest) -> RunTimeAnswer:
        """Quantiles of the run and of what is left, and why."""
        _ = self.trees  # raises before it is fitted
        question, runs = request.question, request.runs
        quantiles, described, record = runs.quantiles(question.kind, _start_s(question), question.job)
        if question.progress is not None:
            return _by_steps(question, described)
        if not described.finished:
            return _unknown()
        reasons = (*_of_history(described, question), *_of_drift(record))
        ended = runs.ended(question.kind)
        return _answer(quantiles, question, described, reasons, ended, by_recent=record.has_drifted)

    def remaining(self, questions: Sequence[RunTimeQuestion], runs: ClusterRuns) -> list["Remaining"]:
        """What is left of many jobs: as ``answer`` has it, without its reasons, in a tenth of the time."""
        _ = self.trees  # raises before it is fitted
        by_model = [question for question in questions if question.progress is None]
        starts = [(question.kind, _start_s(question), question.job) for question in by_model]
        rows, result = iter(runs.quantiles_of_all(starts)), []
        for question in questions:
            level, finished = runs.history.level_of(question.kind)
            if question.progress is not None:
                seconds = remaining_seconds(question.progress, question.at_s)
            else:
                log_times, elapsed = LogTimes(tuple(next(rows).tolist())), _elapsed(question)
                ended = () if elapsed <= 0 and runs.has_drifted(question.kind) else runs.ended(question.kind)
                seconds = remaining_while_running(log_times, elapsed, ended)
            is_answered = finished > 0 or question.progress is not None
            result.append(Remaining(tuple(seconds.tolist()) if is_answered else None, level, finished))
        return result

    def predict(self, request: RunTimeRequest) -> tuple[Prediction, ...]:
        """Seconds of the whole run, and seconds that are left of it."""
        answer = self.answer(request)
        if answer.run_seconds is None or answer.remaining_seconds is None:
            return tuple(Prediction.refusal(answer.reasons[0], unit="s", model=self.version) for _ in range(2))
        return tuple(
            Prediction(
                values[len(LEVELS) // 2],
                values[0],
                values[-1],
                PROBABILITY,
                "s",
                _confidence(values),
                self.version,
                answer.reasons,
                dict(zip(LEVELS, values, strict=True)),
                features_at_s=request.question.at_s,
                fallback=answer.by_recent,
            )
            for values in (answer.run_seconds, answer.remaining_seconds)
        )

    def explain(self, request: RunTimeRequest) -> tuple[Reason, ...]:
        """Whose runs it was answered from."""
        return self.answer(request).reasons

    def save(self, folder: Path) -> None:
        import json

        self.trees.save(folder)
        document = {"version": _VERSION, "settings": asdict(self.settings), "features": list(FEATURES)}
        (folder / _DOCUMENT).write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises ValueError with the file's name when something is missing or torn."""
        path = folder / _DOCUMENT
        document = read_json(path)
        try:
            if document["version"] != _VERSION or tuple(document["features"]) != FEATURES:
                raise ValueError("written by another release; train the model again")
            settings = TreeSettings(**document["settings"])
            if not 1 <= settings.seeds <= 16:
                raise ValueError(f"{settings.seeds} seeds")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no run-time model ({error})") from error
        result = cls(settings)
        result._trees = QuantileTrees.load(folder, settings)
        return result


def answer_recent(history: JobHistory, question: RunTimeQuestion, why: Reason) -> RunTimeAnswer:
    """What the last runs alone say, for ``why``: the reason that there is no answer of a model."""
    described = history.describe(question.kind, _start_s(question))
    if question.progress is not None:
        return _by_steps(question, described)
    values = history.recent_log_seconds(question.kind)
    if not values:
        return _unknown()
    reasons = (*_of_history(described, question), why)
    return _answer(recent_quantiles(values), question, described, reasons, history.ended(question.kind), by_recent=True)


def _start_s(question: RunTimeQuestion) -> float:
    return question.at_s if question.started_s is None else question.started_s


def _elapsed(question: RunTimeQuestion) -> float:
    return question.at_s - _start_s(question)


def _unknown() -> RunTimeAnswer:
    text = (
        "No such job of this cluster has ended yet, so nothing is known of how long they run. Send what ended to "
        "/v1/runtime/runs, or begin with a table: kopt runtime import jobs.csv."
    )
    return RunTimeAnswer(None, None, (Reason("NO_RUNS", text),), "none", 0)


def _answer(
    log_quantiles: Array,
    question: RunTimeQuestion,
    described: Described,
    reasons: tuple[Reason, ...],
    ended: Sequence[EndedRuns],
    *,
    by_recent: bool,
) -> RunTimeAnswer:
    elapsed = _elapsed(question)
    if by_recent and elapsed <= 0:
        # The last twenty alone: older ones are of a time that has passed.
        ended = ()
    remaining = remaining_while_running(LogTimes(tuple(log_quantiles.tolist())), elapsed, ended)
    return RunTimeAnswer(
        tuple((remaining + elapsed).tolist()),
        tuple(remaining.tolist()),
        reasons,
        described.level,
        described.finished,
        by_recent=by_recent,
    )


def _by_steps(question: RunTimeQuestion, described: Described) -> RunTimeAnswer:
    assert question.progress is not None
    progress = question.progress
    remaining = remaining_seconds(progress, question.at_s)
    per_step = float(np.mean(progress.step_seconds))
    text = (
        f"Its log shows step {progress.step:,} of {progress.steps:,}, {per_step:.3g} s each over the last "
        f"{len(progress.step_seconds)}: {format_span(float(remaining[len(LEVELS) // 2]))} are left."
    )
    numbers = {"step": progress.step, "steps": progress.steps, "step_seconds": per_step}
    return RunTimeAnswer(
        tuple((remaining + _elapsed(question)).tolist()),
        tuple(remaining.tolist()),
        (Reason("STEPS_LEFT", text, numbers),),
        described.level,
        described.finished,
        by_steps=True,
    )


def _of_history(described: Described, question: RunTimeQuestion) -> tuple[Reason, ...]:
    typical, elapsed = math.exp(described.base), _elapsed(question)
    label, took = _LEVEL_LABELS[described.level], format_span(typical)
    if described.finished == 1:
        text = f"1 {label.replace('jobs', 'job', 1)} has ended; it took {took}."
    else:
        last = min(RECENT, described.finished)
        text = f"{described.finished:,} {label} have ended; the last {last} took {took} (median)."
    numbers: dict[str, float | int | str] = {
        "finished": described.finished,
        "median_seconds": typical,
        "level": described.level,
    }
    of_class = Reason("SIMILAR_RUNS", text, numbers)
    if elapsed <= 0:
        return (of_class,)
    text = f"It has run for {format_span(elapsed)}; shorter runs no longer count."
    return of_class, Reason("ALREADY_RUNNING", text, {"elapsed_seconds": elapsed})


def _of_drift(record: QueueRecord) -> tuple[Reason, ...]:
    ratio = record.loss_ratio
    if not record.has_drifted or ratio is None:
        return ()
    text = (
        f"In this queue the model was {ratio:.2f} times as far off as the last runs alone, over the last "
        f"{record.compared} jobs: the answer is from those. Train it again: kopt train runtime --data FOLDER."
    )
    return (Reason("RUN_TIME_DRIFT", text, {"loss_ratio": ratio, "jobs": record.compared}),)


def _confidence(values: Sequence[float]) -> float:
    """1 for an interval of no width, .5 for a factor of 2 either way."""
    low, high = max(1.0, values[0]), max(1.0, values[-1])
    return 1 / (1 + math.log(high / low) / math.log(4))
