"""Which running gangs make room for a waiting workload of higher priority, and when (K5).

In: the waiting workload, the running gangs with what their logs say (`JobStatus`), queue shares, free GPUs, the state
of the last call. Out: a decision with a reason for every candidate, and the state for the next call. Victims are the
set that loses least work; where a cheaper moment is expected within the waiting budget, the answer is to wait for it,
and where the native scheduler's own rule is expected to lose less, to leave it alone. A gang in a checkpoint write or
without evidence of checkpoints is never a victim; no queue falls below its guarantee.
"""

from kopt.policies.preemption.decide import decide
from kopt.policies.preemption.decision import CandidateNote, PreemptionDecision, Verdict
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState, observe
from kopt.policies.preemption.words import Member, QueueShare, RunningGang, Scene, Waiting

__all__ = [
    "CandidateNote",
    "Member",
    "PreemptionDecision",
    "PreemptionSettings",
    "PreemptionState",
    "QueueShare",
    "RunningGang",
    "Scene",
    "Verdict",
    "Waiting",
    "decide",
    "observe",
]
