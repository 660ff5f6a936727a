"""Whether a training job can be killed now, and what would be lost: the words of logs, states and work at risk."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kopt.core.units import MilliGpu


class LineLabel(StrEnum):
    """What one line of a training log says."""

    STARTUP = "startup"
    DATA = "data"
    TRAIN_STEP = "train_step"
    EVAL = "eval"
    CKPT_BEGIN = "ckpt_begin"
    CKPT_PROGRESS = "ckpt_progress"
    CKPT_END = "ckpt_end"
    CKPT_LOAD = "ckpt_load"
    OOM = "oom"
    ERROR = "error"
    END = "end"
    OTHER = "other"


class Source(StrEnum):
    """Whose word about a job's checkpoints it is."""

    AGENT = "agent"
    """The log agent's, from the job's log."""
    CLAIM = "claim"
    """The pod's owner's: nobody has seen it."""


class Evidence(StrEnum):
    """What shows that a job's last checkpoint is durable."""

    TEXT = "text"
    """Its log says so, or has gone on after the write."""
    FILES = "files"
    """They are complete and have rested."""
    ANNOTATION = "annotation"
    """The job's own pods say so, and nobody has seen it."""


LONGEST_START_S = 900.0
"""The restart is part of the work at risk; a longer one than this is not credible."""
CLAIMED = "claimed by the pod's owner"


def claimed(source: Source | None) -> str:
    """What stands behind a figure or a state in a sentence; empty for the log agent's word."""
    return f" ({CLAIMED})" if source is Source.CLAIM else ""


class JobState(StrEnum):
    """Where a job is: ``UNKNOWN`` is never safe; ``CKPT_DONE`` is the line that ends a write."""

    STARTING = "STARTING"
    DATA = "DATA"
    LOADING = "LOADING"
    TRAIN = "TRAIN"
    EVAL = "EVAL"
    CKPT_WRITING = "CKPT_WRITING"
    CKPT_DONE = "CKPT_DONE"
    CKPT_FAILED = "CKPT_FAILED"
    FINISHED = "FINISHED"
    CRASHED = "CRASHED"
    OOM = "OOM"
    STALLED = "STALLED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` in ``[low, high]``, true nine times in ten. Raises ValueError where it does not fit."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.value <= self.high:
            raise ValueError(f"the interval [{self.low}, {self.high}] does not hold {self.value}")

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a job's log, and what else is known of it, says at one moment.

    ``safe``: the state is not UNKNOWN, a durable checkpoint exists (``evidence``) and no write is open. Steps are the
    job's own counting; times are those of the log's clock where lines carry it, else of their arrival, else None.
    ``work_at_risk_gpu_seconds`` is what being killed now costs: computing since the last durable checkpoint, and the
    start again. ``next_safe_seconds`` is 0 while safe, None where nothing is known; ``next_checkpoint_seconds``: until
    the work at risk drops, as the job's saves so far let expect. ``evidence_line`` counts from 1.
    ``last_durable_claimed``: the job's own pods say by annotation that there is this checkpoint, and no line of the log
    has shown it. ``durable_evidence``: what shows that checkpoint, None without one.
    """

    state: JobState
    safe: bool = False
    evidence: bool = False
    confidence: float = 0.0
    step: int | None = None
    last_durable_step: int | None = None
    last_durable_at_s: float | None = None
    seconds_since_durable: float | None = None
    work_at_risk_gpu_seconds: Estimate | None = None
    next_safe_seconds: Estimate | None = None
    next_checkpoint_seconds: Estimate | None = None
    evidence_line: int | None = None
    evidence_text: str = ""
    reason: str = ""
    writers: int = field(default=1)
    last_durable_claimed: bool = False
    durable_evidence: Evidence | None = None

    @property
    def durable_text(self) -> str:
        """The last durable checkpoint for readers: its step, and what shows it where that is not the log."""
        if not self.evidence:
            return "none seen"
        step = "of an unknown step" if self.last_durable_step is None else f"of step {self.last_durable_step:,}"
        if self.last_durable_claimed:
            return f"{step} (claimed by the job's pods, not seen in its log)"
        return f"{step} (by its files)" if self.durable_evidence is Evidence.FILES else step

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``kopt logs classify -o json``; work at risk stands as a number, its bounds beside it."""
        risk, after, saved = self.work_at_risk_gpu_seconds, self.next_safe_seconds, self.next_checkpoint_seconds
        return {
            "state": self.state.value,
            "safe": self.safe,
            "evidence": self.evidence,
            "confidence": self.confidence,
            "step": self.step,
            "last_durable_step": self.last_durable_step,
            "last_durable_at": self.last_durable_at_s,
            "seconds_since_durable": self.seconds_since_durable,
            "work_at_risk_gpu_seconds": risk.value if risk else None,
            "work_at_risk_low": risk.low if risk else None,
            "work_at_risk_high": risk.high if risk else None,
            "next_safe_seconds": after.value if after else None,
            "next_safe_low": after.low if after else None,
            "next_safe_high": after.high if after else None,
            "next_checkpoint_seconds": saved.value if saved else None,
            "next_checkpoint_low": saved.low if saved else None,
            "next_checkpoint_high": saved.high if saved else None,
            "evidence_line": self.evidence_line,
            "evidence_text": self.evidence_text,
            "reason": self.reason,
            "writers": self.writers,
            "last_durable_claimed": self.last_durable_claimed,
            "durable_evidence": self.durable_evidence,
        }


@dataclass(frozen=True)
class Member:
    """Pods of a gang that write one log (all ranks of a training, or one role of several).

    ``status`` was observed at ``observed_at_s``; None if no status was ever observed. ``node`` may be empty where it
    does not matter which GPUs are freed together. ``claimed``: the status is the pod owner's own claim.
    """

    gpus: MilliGpu
    status: JobStatus | None = None
    observed_at_s: float = 0.0
    node: str = ""
    claimed: bool = False
