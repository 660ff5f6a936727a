"""Evictions of GPU workloads: who lost its GPUs to whom, what that cost, and whether it is back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.workload.checkpoint import Source


class Cause(StrEnum):
    """Why a workload lost its GPUs."""

    PREEMPTED = "Preempted"
    LENDING = "Lending"
    """What was lent to it was taken back."""
    DRAINED = "Drained"
    """A node or a queue was emptied."""
    NODE_LOST = "NodeLost"
    DEACTIVATED = "Deactivated"
    SUSPENDED = "Suspended"
    DELETED = "Deleted"
    """Its pods were deleted, the workload was not."""
    UNKNOWN = "Unknown"


class System(StrEnum):
    """The queueing system that decides when it runs again."""

    KUEUE = "Kueue"
    KAI = "KAI"
    VOLCANO = "Volcano"
    NONE = "None"


class Phase(StrEnum):
    """What became of an evicted workload; the last two are final."""

    WAITING = "Waiting"
    RESUMED = "Resumed"
    FINISHED = "Finished"
    GONE = "Gone"


class Verified(StrEnum):
    """Whether training went on where its last durable checkpoint was."""

    YES = "Yes"
    NO = "No"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class LastReport:
    """The last report on a workload's checkpoints while it ran. Times are Unix seconds.

    ``risk_gpu_s``: work of all its GPUs that would have been lost at ``observed_at_s``.
    """

    observed_at_s: float
    step: int | None = None
    durable_at_s: float | None = None
    risk_gpu_s: float | None = None
    first_step: int | None = None
    """Of the pod that reported it."""
    source: Source | None = None


@dataclass(frozen=True)
class WorkloadRef:
    """An object that owns pods, or a pod that nobody owns."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class Notice:
    """What one of our own writes on a workload before it evicts it. ``at_s``: Unix seconds."""

    by: str
    cause: Cause
    for_whom: str
    at_s: float
    reason: str

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], at_s: float) -> "Notice":
        """``document`` without its ``at``. Raises ValueError for a cause that there is not."""
        cause = Cause(str(document.get("cause") or Cause.UNKNOWN))
        by, for_whom, reason = (str(document.get(name) or "") for name in ("by", "for", "reason"))
        return cls(by, cause, for_whom, at_s, reason)


@dataclass(frozen=True)
class Eviction:
    """One eviction, of a whole gang where there is one. Times are Unix seconds, ``gpus`` milli-GPU.

    ``for_whom`` is ``namespace/name`` of the workload that gets the GPUs, empty when nobody or unknown. The last
    durable step and its time, and ``lost_gpu_s``, are None when nothing is known of the workload's checkpoints.
    ``order``: of two that wait, the smaller goes first. ``source``: who told of its checkpoints; None where
    nobody did, or an older ledger did not note it.
    """

    namespace: str
    name: str
    workload: WorkloadRef
    system: System
    evicted_at_s: float
    cause: Cause
    by: str
    for_whom: str
    reason: str
    gpus: int
    order: int
    last_durable_step: int | None = None
    last_durable_at_s: float | None = None
    lost_gpu_s: float | None = None
    source: Source | None = None


@dataclass(frozen=True)
class Return:
    """What became of it. ``resumed_step``: the first step of the pods that went on, where they tell."""

    phase: Phase = Phase.WAITING
    resumed_at_s: float | None = None
    resumed_step: int | None = None
    verified: Verified | None = None
    message: str = ""

    @property
    def final(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.GONE)


@dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    eviction: Eviction
    outcome: Return = Return()
