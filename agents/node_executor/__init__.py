"""The one component that changes a node: it verifies signed plans, and applies them to the GPUs or undoes them.

In: the ``NodePlan`` of its own node, and public keys of those who may sign. Out: the GPUs' partitions, and on the
object what was done or why it was refused. A journal on the node says how far it came when it was killed.
"""
