"""CPU and memory of running workloads: what to change, and whether a change may stay.

In: what containers request, what they used, and step times before and after a change. Out: one change of one resource,
or a reason for none; ``KEEP``, ``UNDO`` or ``WATCH``. Nothing here reads a clock or a cluster.
"""
