"""Selects which running gangs to preempt for a waiting workload of higher priority, and when (K5).

In: a snapshot with the preemptor, the running gangs with their `JobStatus`, queue shares and free GPUs, and the state
of the last call. Out: a decision with a reason for every candidate, and the state for the next call. Victims are the
set that loses the least work. The decision is to wait where a cheaper time is expected within the waiting budget, and
to leave the workload alone where the native scheduler's own rule is expected to lose less. A gang that is writing a
checkpoint or has no evidence of checkpoints is never a victim, and no queue falls below its guarantee.
"""

from kopt.policies.preemption.decide import decide
from kopt.policies.preemption.decision import CandidateResult, PreemptionAction, PreemptionDecision
from kopt.policies.preemption.model import Preemptor, QueueShare, RunningGang, Snapshot
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState, observe

__all__ = [
    "CandidateResult",
    "PreemptionAction",
    "PreemptionDecision",
    "PreemptionSettings",
    "PreemptionState",
    "Preemptor",
    "QueueShare",
    "RunningGang",
    "Snapshot",
    "decide",
    "observe",
]
