"""The arithmetic of Kueue's quota: what fits, which limit binds, which flavour is assigned, whom Kueue would preempt.

In: the nodes of a cohort tree with the usage of their queues (``core.scheduling.quota``), a waiting workload. Out:
amounts and names. The semantics are those of Kueue 0.15 without fair sharing and topologies; tests compare both.
"""

from kopt.policies.quota.assignment import Assignment, Mode, assign
from kopt.policies.quota.candidates import Advantage, advantages, candidates
from kopt.policies.quota.limits import Limits, limits
from kopt.policies.quota.tree import QuotaTree, Room
from kopt.policies.quota.victims import targets

__all__ = [
    "Advantage",
    "Assignment",
    "Limits",
    "Mode",
    "QuotaTree",
    "Room",
    "advantages",
    "assign",
    "candidates",
    "limits",
    "targets",
]
