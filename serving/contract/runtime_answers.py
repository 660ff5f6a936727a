"""What ``/v1/runtime`` answers, as the endpoint publishes it and clients read it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kopt.core.prediction import ModelVersion
from kopt.core.scheduling.diagnosis import PredictedStart
from kopt.core.workload.run_time import JobKind, JobRun, RunTimeAnswer, RunTimeQuestion, StepProgress
from kopt.serving.contract.common import SCHEMA, ModelOut, ReasonOut, reasons_out
from kopt.serving.contract.reading import read_answer

MAX_JOBS = 2_000
"""In one question about many jobs."""

# Docstrings of the classes below are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class SecondsOut:
    """Quantiles, in seconds: half of such runs are shorter than ``p50``, nine in ten lie from ``p05`` to ``p95``."""

    p05: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float] | None) -> "SecondsOut | None":
        """From quantiles at ``LEVELS``."""
        return None if seconds is None else cls(*(round(value, 3) for value in seconds))


@dataclass(frozen=True, kw_only=True)
class RunTimeResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    run_seconds: SecondsOut | None
    """Of the whole run, given that it has run as long as it has; None in a refusal."""
    remaining_seconds: SecondsOut | None
    """Of what is left of it at ``at_s``."""
    at_s: float
    """Unix seconds."""
    level: str
    """Whose last runs it was answered from: ``name``, ``class`` (queue and GPUs), ``queue``, ``gpus``, ``all`` or
    ``none``."""
    finished: int
    """So many of them had ended."""
    by_steps: bool
    """By the steps that its log shows."""
    model: ModelOut
    fallback: bool
    """By the last runs alone."""
    refused: bool
    reasons: tuple[ReasonOut, ...]

    @classmethod
    def of(cls, answer: RunTimeAnswer, at_s: float, version: ModelVersion) -> "RunTimeResponse":
        """An answer on the wire."""
        return cls(
            run_seconds=SecondsOut.of(answer.run_seconds),
            remaining_seconds=SecondsOut.of(answer.remaining_seconds),
            at_s=at_s,
            level=answer.level,
            finished=answer.finished,
            by_steps=answer.by_steps,
            model=ModelOut.of(version),
            fallback=answer.by_recent,
            refused=answer.run_seconds is None,
            reasons=reasons_out(answer.reasons),
        )


@dataclass(frozen=True)
class JobTimeOut:
    """One of many jobs. ``remaining_seconds`` is None where nothing is known of its like."""

    id: str
    remaining_seconds: SecondsOut | None
    level: str
    finished: int


@dataclass(frozen=True, kw_only=True)
class RunTimesResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    jobs: tuple[JobTimeOut, ...]
    """In the order of the request."""
    at_s: float
    model: ModelOut


@dataclass(frozen=True, kw_only=True)
class RunsKept:
    schema: Literal["kopt/v1"] = SCHEMA
    kept: int
    """Runs that were new, or whose end was."""
    known: int
    """Runs of which nothing was new."""


@dataclass(frozen=True)
class RunOut:
    """A run as it was sent."""

    job: str
    queue: str
    gpus: int
    name: str
    user: str
    started_s: float
    ended_s: float | None
    interrupted: bool
    submitted_s: float | None
    pool: str

    @classmethod
    def of(cls, run: JobRun) -> "RunOut":
        return cls(run.job, **_kind(run.kind), **_times(run))

    @property
    def run(self) -> JobRun:
        """Raises RunTimeError for one that cannot be."""
        kind = JobKind(self.queue, self.gpus, self.name, self.user)
        return JobRun(self.job, kind, self.started_s, self.ended_s, self.interrupted, self.submitted_s, self.pool)


@dataclass(frozen=True, kw_only=True)
class RunsResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    runs: tuple[RunOut, ...]
    """In the order in which they became known; at most 5,000."""
    last: int
    """Give it as ``after`` for what comes next."""


@dataclass(frozen=True)
class StartOut:
    """A predicted start as earlier starts of its queue came true; unchanged while too few are known."""

    job: str
    p50_s: float
    """Seconds from its ``at_s`` on."""
    p90_s: float
    compared: int
    """So many starts of its queue it was corrected by."""


@dataclass(frozen=True, kw_only=True)
class StartsResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    starts: tuple[StartOut, ...]
    """In the order of the request."""


@dataclass(frozen=True)
class QueueOut:
    """One queue: how answers about it have held, over the last runs that ended."""

    cluster: str
    queue: str
    running: int
    compared: int
    coverage: float | None
    """Share of runs that lay between p05 and p95; None before enough have ended."""
    loss_ratio: float | None
    """The model's loss by that of the last 20 runs alone; below 1 the model is better."""
    drifted: bool
    """The model has been worse than the last runs alone, which answer instead."""
    starts: int = 0
    """Predicted starts that have come."""
    start_coverage: float | None = None
    """Share of them that came by the p90 that was answered, nine of ten at best; None before the first."""


@dataclass(frozen=True, kw_only=True)
class QueuesResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    queues: tuple[QueueOut, ...]


def parse_run_time(document: Mapping[str, Any]) -> RunTimeResponse:
    """What ``/v1/runtime`` says. Raises AnswerError for anything else."""
    return read_answer(RunTimeResponse, "/v1/runtime", document)


def parse_run_times(document: Mapping[str, Any]) -> RunTimesResponse:
    """Raises AnswerError."""
    return read_answer(RunTimesResponse, "/v1/runtime/jobs", document)


def parse_runs_kept(document: Mapping[str, Any]) -> RunsKept:
    """Raises AnswerError."""
    return read_answer(RunsKept, "/v1/runtime/runs", document)


def parse_runs(document: Mapping[str, Any]) -> RunsResponse:
    """Raises AnswerError."""
    return read_answer(RunsResponse, "/v1/runtime/runs", document)


def parse_starts(document: Mapping[str, Any]) -> StartsResponse:
    """Raises AnswerError."""
    return read_answer(StartsResponse, "/v1/runtime/starts", document)


def parse_queues(document: Mapping[str, Any]) -> QueuesResponse:
    """Raises AnswerError."""
    return read_answer(QueuesResponse, "/v1/runtime/queues", document)


def run_time_request(question: RunTimeQuestion, cluster: str) -> dict[str, Any]:
    """The body of ``/v1/runtime``."""
    return _question_fields(question) | {"cluster": cluster, "at_s": question.at_s}


def run_times_request(questions: Mapping[str, RunTimeQuestion], cluster: str) -> dict[str, Any]:
    """The body of ``/v1/runtime/jobs``, by the name of each job; asked at the time of the first question."""
    jobs = [_question_fields(question) | {"id": name} for name, question in questions.items()]
    return {"cluster": cluster, "at_s": next(iter(questions.values())).at_s, "jobs": jobs}


def _question_fields(question: RunTimeQuestion) -> dict[str, Any]:
    return (
        _kind(question.kind)
        | {"job": question.job}
        | ({} if question.started_s is None else {"started_s": question.started_s})
        | ({} if question.progress is None else {"progress": _progress(question.progress)})
    )


def _progress(progress: StepProgress) -> dict[str, Any]:
    return {**asdict(progress), "step_seconds": list(progress.step_seconds)}


def _kind(kind: JobKind) -> dict[str, Any]:
    return {"queue": kind.queue, "gpus": kind.gpus, "name": kind.name, "user": kind.user}


def starts_request(starts: Sequence[PredictedStart], cluster: str) -> dict[str, Any]:
    """The body of ``/v1/runtime/starts``; each has a p50 and a p90."""
    listed = [
        {
            "job": start.job,
            "queue": start.queue,
            "at_s": start.at_s,
            "p50_s": start.estimate.p50_s,
            "p90_s": start.estimate.p90_s,
        }
        for start in starts
    ]
    return {"cluster": cluster, "starts": listed}


def runs_request(runs: Sequence[JobRun], cluster: str) -> dict[str, Any]:
    """The body of ``/v1/runtime/runs``."""
    return {"cluster": cluster, "runs": [_run(run) for run in runs]}


def _run(run: JobRun) -> dict[str, Any]:
    times = {
        key: value for key, value in _times(run).items() if value is not None and value is not False and value != ""
    }
    return _kind(run.kind) | {"job": run.job} | times


def _times(run: JobRun) -> dict[str, Any]:
    names = ("started_s", "ended_s", "interrupted", "submitted_s", "pool")
    return {name: getattr(run, name) for name in names}
