"""The answers of ``/v1/checkpoint``, declared once for the endpoint and its clients. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kopt.core.workload.checkpoint import Estimate, Evidence, JobState, JobStatus
from kopt.formats.joblog.epochs import Epoch
from kopt.serving.contract.common import SCHEMA, ModelOut
from kopt.serving.contract.reading import added_later, read_answer

# Docstrings of these classes are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class JobStatusOut:
    """``core.checkpoint.JobStatus``: where the job is, may it be killed now, and what would be lost. Times are Unix
    seconds; nulls where nothing is known. Intervals hold nine times in ten."""

    state: str
    safe: bool
    """A durable checkpoint exists, no write is open, and the state is known."""
    evidence: bool
    confidence: float
    step: int | None
    last_durable_step: int | None
    last_durable_at: float | None
    seconds_since_durable: float | None
    work_at_risk_gpu_seconds: float | None
    work_at_risk_low: float | None
    work_at_risk_high: float | None
    next_safe_seconds: float | None
    next_safe_low: float | None
    next_safe_high: float | None
    next_checkpoint_seconds: float | None
    next_checkpoint_low: float | None
    next_checkpoint_high: float | None
    evidence_line: int | None
    """Counts the lines that were read of all sources, from 1."""
    evidence_text: str
    """Cut and without what looks like a secret."""
    reason: str
    writers: int
    last_durable_claimed: bool = added_later(absent=False)
    """The job's own pods report this checkpoint by annotation; no line of the log has shown it."""
    durable_evidence: str | None = added_later(absent=None)
    """What shows the last durable checkpoint: ``text`` of the log, ``files``, or an ``annotation``."""

    def __post_init__(self) -> None:
        # Refuses what cannot be a status.
        _ = self.status

    @cached_property
    def status(self) -> JobStatus:
        return JobStatus(
            JobState(self.state),
            self.safe,
            self.evidence,
            self.confidence,
            self.step,
            self.last_durable_step,
            self.last_durable_at,
            self.seconds_since_durable,
            _estimate(self.work_at_risk_gpu_seconds, self.work_at_risk_low, self.work_at_risk_high),
            _estimate(self.next_safe_seconds, self.next_safe_low, self.next_safe_high),
            _estimate(self.next_checkpoint_seconds, self.next_checkpoint_low, self.next_checkpoint_high),
            self.evidence_line,
            self.evidence_text,
            self.reason,
            self.writers,
            self.last_durable_claimed,
            None if self.durable_evidence is None else Evidence(self.durable_evidence),
        )


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    if value is None:
        return None
    if low is None or high is None:
        raise ValueError("an estimate has a lower and an upper bound")
    return Estimate(value, low, high)


@dataclass(frozen=True, kw_only=True)
class CheckpointResponse(JobStatusOut):
    schema: Literal["kopt/v1"] = SCHEMA
    job: str
    lines: int
    """Read so far, of all sources."""
    next: dict[str, int]
    """Number of the line that is expected next, per source."""
    missed: dict[str, int]
    """Lines that never came, per source. Until the next durable checkpoint the job is not called safe."""
    notes: tuple[str, ...]
    """What was sent but could not be used."""
    model: ModelOut
    fallback: bool


@dataclass(frozen=True)
class ChangeOut:
    """A moment at which the job's state, or whether it is safe, became another."""

    at: float
    state: str
    safe: bool
    line: int | None
    text: str

    def __post_init__(self) -> None:
        # Refuses what is no state.
        JobState(self.state)


@dataclass(frozen=True, kw_only=True)
class JobOut(JobStatusOut):
    job: str
    heard_at: float
    """When the job was last heard of."""
    gpus: float
    lines: int
    missed: dict[str, int]
    changes: tuple[ChangeOut, ...]
    """The longest-lasting states and all around writes, oldest first; bounded."""


@dataclass(frozen=True)
class EpochOut:
    """An epoch as a source of the job's log named it. One that goes on ends where it was last heard of; rates are means
    of what its lines say. Times are Unix seconds."""

    source: str
    number: int
    started_at: float
    ended_at: float
    steps: int
    """0 where the log counts none."""
    samples_per_second: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, kw_only=True)
class CheckpointsResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    jobs: tuple[JobOut, ...]
    """Heard of within a day, the latest first."""
    now: float
    epochs: tuple[EpochOut, ...] = added_later(absent=())
    """Of the job that is named, by their begin, 20,000 at most; those of jobs that ended long ago too."""


def parse_jobs(document: Mapping[str, Any]) -> CheckpointsResponse:
    """What ``GET /v1/checkpoint`` says. Raises AnswerError for anything else."""
    return read_answer(CheckpointsResponse, "/v1/checkpoint", document)


def epochs_by_source(answer: CheckpointsResponse) -> dict[str, list[Epoch]]:
    """By the source of the job's log that named them."""
    sources: dict[str, list[Epoch]] = {}
    for each in answer.epochs:
        times = (each.started_at, each.ended_at)
        epoch = Epoch(each.number, *times, each.steps, each.samples_per_second, each.tokens_per_second)
        sources.setdefault(each.source, []).append(epoch)
    return sources
