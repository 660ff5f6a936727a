"""Staging: which copy to make, retry or remove next, on which nodes, and which workloads wait for it.

In: the spec, the state of each copy and of its Job, the users of the data, the capacity of nodes. Out: the copies as
they are reported in the status, Jobs to start and to stop, workloads to hold and to release. No I/O and no clock.
"""
