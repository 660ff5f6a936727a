"""The jobs that the endpoint follows, as frozen values. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.workload.checkpoint import Estimate, JobState, JobStatus
from kopt.serving.contract.common import SCHEMA, AnswerError


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


def _job(result: Mapping[str, Any]) -> FollowedJobView:
    changes = tuple(
        StateChange(float(item["at"]), JobState(item["state"]), bool(item["safe"]), item["line"], str(item["text"]))
        for item in result["changes"]
    )
    missed = sum(result["missed"].values())
    return FollowedJobView(
        str(result["job"]),
        float(result["heard_at"]),
        float(result["gpus"]),
        int(result["lines"]),
        job_status(result),
        changes,
        missed,
    )


def job_status(result: Mapping[str, Any]) -> JobStatus:
    """Out of the fields of ``JobStatus.to_dict``. Raises KeyError, TypeError or ValueError."""
    return JobStatus(
        JobState(result["state"]),
        bool(result["safe"]),
        bool(result["evidence"]),
        float(result["confidence"]),
        result["step"],
        result["last_durable_step"],
        result["last_durable_at"],
        result["seconds_since_durable"],
        _estimate(result, "work_at_risk", "_gpu_seconds"),
        _estimate(result, "next_safe"),
        _estimate(result, "next_checkpoint"),
        result["evidence_line"],
        str(result["evidence_text"]),
        str(result["reason"]),
        int(result["writers"]),
        bool(result.get("last_durable_claimed")),
    )


def _estimate(result: Mapping[str, Any], name: str, unit: str = "_seconds") -> Estimate | None:
    value = result[f"{name}{unit}"]
    return (
        None if value is None else Estimate(float(value), float(result[f"{name}_low"]), float(result[f"{name}_high"]))
    )
