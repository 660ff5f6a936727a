"""Cuts the GPUs of nodes into MIG instances as MIGStrategies and waiting requests need them.

A node is cut anew only while nothing runs on it. Where a driver cuts on demand nothing is cut here: the webhook selects
what claims get. State is on nodes, in the marks of ``cluster.holds.node_layout``.
"""
