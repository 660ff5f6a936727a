"""Health of GPUs and nodes (K17): what evidence weighs, whose jobs fail where, and which nodes to keep free.

In: evidence and what it weighed before, outcomes of jobs, nodes of a pool. Out: entries, verdicts, nodes to taint.
"""

from kopt.policies.health.evidence import CONDEMNED_FROM, Thresholds, add, load_of, pruned, repaired
from kopt.policies.health.grades import evaluate, explain
from kopt.policies.health.job_failures import failing_nodes, pool_rate
from kopt.policies.health.taints import Candidate, kept_free

__all__ = [
    "CONDEMNED_FROM",
    "Candidate",
    "Thresholds",
    "add",
    "evaluate",
    "explain",
    "failing_nodes",
    "kept_free",
    "load_of",
    "pool_rate",
    "pruned",
    "repaired",
]
