"""The jobs that the endpoint follows, as frozen values. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.checkpoint import Estimate, JobState, JobStatus
from kopt.serving.answers import AnswerError
from kopt.serving.wire import SCHEMA


@dataclass(frozen=True)
class StateChange:
    """From ``at_s`` (Unix seconds) on the job was in this state; ``text`` of ``line`` said so."""

    at_s: float
    state: JobState
    safe: bool
    line: int | None = None
    text: str = ""


@dataclass(frozen=True)
class FollowedJobView:
    """One job: its status when it was asked for, and how it came there, oldest first. ``missed`` lines never came."""

    job: str
    heard_at_s: float
    gpus: float
    lines: int
    status: JobStatus
    changes: tuple[StateChange, ...] = ()
    missed: int = 0


@dataclass(frozen=True)
class FollowedJobs:
    """Jobs heard of lately, the latest first, as of ``now_s`` on the endpoint's clock."""

    jobs: tuple[FollowedJobView, ...] = field(default_factory=tuple)
    now_s: float = 0.0


def parse_jobs(document: Mapping[str, Any]) -> FollowedJobs:
    """What ``GET /v1/checkpoint`` says. Raises AnswerError for anything else."""
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")
    try:
        return FollowedJobs(tuple(map(_job, document["jobs"])), float(document["now"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnswerError(f"/v1/checkpoint answered something unexpected: {error!r}") from error


def _job(found: Mapping[str, Any]) -> FollowedJobView:
    changes = tuple(
        StateChange(float(one["at"]), JobState(one["state"]), bool(one["safe"]), one["line"], str(one["text"]))
        for one in found["changes"]
    )
    missed = sum(found["missed"].values())
    return FollowedJobView(
        str(found["job"]), float(found["heard_at"]), float(found["gpus"]), int(found["lines"]), job_status(found),
        changes, missed,
    )  # fmt: skip


def job_status(found: Mapping[str, Any]) -> JobStatus:
    """Out of the fields of ``JobStatus.to_dict``. Raises KeyError, TypeError or ValueError."""
    return JobStatus(
        JobState(found["state"]), bool(found["safe"]), bool(found["evidence"]), float(found["confidence"]),
        found["step"], found["last_durable_step"], found["last_durable_at"], found["seconds_since_durable"],
        _estimate(found, "work_at_risk", "_gpu_seconds"), _estimate(found, "next_safe"),
        _estimate(found, "next_checkpoint"), found["evidence_line"], str(found["evidence_text"]),
        str(found["reason"]), int(found["writers"]),
    )  # fmt: skip


def _estimate(found: Mapping[str, Any], name: str, unit: str = "_seconds") -> Estimate | None:
    value = found[f"{name}{unit}"]
    return None if value is None else Estimate(float(value), float(found[f"{name}_low"]), float(found[f"{name}_high"]))
