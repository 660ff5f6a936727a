"""Into how many replicas of how many GPUs a workload is best divided on the nodes of a cluster as they are now.

In: nodes with their free GPUs, what runs and waits (``policies.diagnosis.QueueModel``), quantiles of run times, and how
much slower each shape computes. Out: ``core.scheduling.replicas.ReplicaAdvice``, every rejected shape with its reason.
"""

from kopt.policies.replicas.advice import ReplicaQuestion, replica_advice
from kopt.policies.replicas.shapes import by_smallest_node, shapes_of
from kopt.policies.replicas.slowdown import slowdown

__all__ = ["ReplicaQuestion", "by_smallest_node", "replica_advice", "shapes_of", "slowdown"]
