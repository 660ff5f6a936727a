"""A declared tree of queues, compiled for the queueing system of a cluster.

In: KaiwoQueues and KaiwoPools as people wrote them (``core.scheduling.queue_tree``). Out: the objects of Kueue, KAI
Scheduler or Volcano as they should be, what these cannot express, and in words what each will do.
"""

from kopt.policies.queues.compile import compile_tree
from kopt.policies.queues.settings import Settings
from kopt.policies.queues.tree import QueueTree, TreeError

__all__ = ["QueueTree", "Settings", "TreeError", "compile_tree"]
