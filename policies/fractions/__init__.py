"""Shares of a GPU: which of the executors on a workload's nodes can give what was asked, and what it enforces.

In: a ``ShareRequest`` and the offers of nodes. Out: one executor, or why none of them will do. What is then written
into the pod is in ``formats.share_terms``.
"""
